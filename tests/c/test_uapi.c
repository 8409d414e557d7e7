/* SPDX-License-Identifier: MIT */
/* Numbers and layouts of the gdrdrv ABI, against the table of NVIDIA's gdrdrv 2.6. */
#include "check.h"

#include <stddef.h>

#include "../../driver/uapi/gdrdrv.h"

static void every_command_has_the_number_of_the_table(void)
{
	CHECK_EQ(GDRDRV_IOC_PIN_BUFFER, 0xC028DA01);
	CHECK_EQ(GDRDRV_IOC_UNPIN_BUFFER, 0xC008DA02);
	CHECK_EQ(GDRDRV_IOC_GET_CB_FLAG, 0xC008DA03);
	CHECK_EQ(GDRDRV_IOC_GET_INFO, 0xC008DA04);
	CHECK_EQ(GDRDRV_IOC_GET_INFO_V2, 0xC008DA05);
	CHECK_EQ(GDRDRV_IOC_GET_ATTR, 0xC008DA06);
	CHECK_EQ(GDRDRV_IOC_PIN_BUFFER_V2, 0xC020DA07);
	CHECK_EQ(GDRDRV_IOC_REQ_MAPPING_TYPE, 0xC008DA08);
	CHECK_EQ(GDRDRV_IOC_GET_VERSION, 0xC008DAFF);
	CHECK_EQ(GDRDRV_IOC_FEATURES, 0xC010DA40);
	CHECK_EQ(GDRDRV_IOC_PIN_V3, 0xC020DA41);
	CHECK_EQ(GDRDRV_IOC_SHARE, 0xC018DA42);
}

static void every_structure_has_the_layout_of_the_table(void)
{
	CHECK_EQ(sizeof(struct gdrdrv_pin_buffer), 40);
	CHECK_EQ(offsetof(struct gdrdrv_pin_buffer, handle), 32);
	CHECK_EQ(sizeof(struct gdrdrv_pin_buffer_v2), 32);
	CHECK_EQ(offsetof(struct gdrdrv_pin_buffer_v2, handle), 24);
	CHECK_EQ(sizeof(struct gdrdrv_unpin_buffer), 8);
	CHECK_EQ(sizeof(struct gdrdrv_get_cb_flag), 16);
	CHECK_EQ(offsetof(struct gdrdrv_get_cb_flag, flag), 8);
	CHECK_EQ(sizeof(struct gdrdrv_get_info), 48);
	CHECK_EQ(offsetof(struct gdrdrv_get_info, page_size), 24);
	CHECK_EQ(offsetof(struct gdrdrv_get_info, tsc_khz), 28);
	CHECK_EQ(offsetof(struct gdrdrv_get_info, mapped), 40);
	CHECK_EQ(offsetof(struct gdrdrv_get_info, wc_mapping), 44);
	CHECK_EQ(sizeof(struct gdrdrv_get_info_v2), 48);
	CHECK_EQ(offsetof(struct gdrdrv_get_info_v2, mapping_type), 40);
	CHECK_EQ(sizeof(struct gdrdrv_get_attr), 8);
	CHECK_EQ(sizeof(struct gdrdrv_req_mapping_type), 16);
	CHECK_EQ(sizeof(struct gdrdrv_get_version), 8);
}

static void versions_are_those_of_the_table(void)
{
	CHECK_EQ(GDRDRV_ABI_VERSION, (2 << 16) | 6);
	CHECK_EQ(GDRDRV_MINIMUM_API_VERSION, 2 << 16);
}

CHECK_MAIN(TEST(every_command_has_the_number_of_the_table),
	   TEST(every_structure_has_the_layout_of_the_table), TEST(versions_are_those_of_the_table))
