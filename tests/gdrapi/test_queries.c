/* SPDX-License-Identifier: MIT */
/* What the library says of itself and of the machine. */
#include "rig.h"

static void the_runtime_is_of_version_2_6(void)
{
	int major = -1, minor = -1;

	gdr_runtime_get_version(&major, &minor);
	CHECK_EQ(major, GDR_API_MAJOR_VERSION);
	CHECK_EQ(minor, GDR_API_MINOR_VERSION);
}

static void the_driver_is_of_version_2_6(void)
{
	gdr_t gdr = opened();
	int major = -1, minor = -1;

	CHECK_EQ(gdr_driver_get_version(gdr, &major, &minor), 0);
	CHECK_EQ(major, 2);
	CHECK_EQ(minor, 6);
	CHECK_EQ(gdr_close(gdr), 0);
}

static int attribute(gdr_t gdr, gdr_attr_t which)
{
	int value = -1;

	CHECK_EQ(gdr_get_attribute(gdr, which, &value), 0);
	return value;
}

static void attributes_tell_what_pins_are_like(void)
{
	gdr_t gdr = opened();

	CHECK_EQ(attribute(gdr, GDR_ATTR_USE_PERSISTENT_MAPPING), 1);
	CHECK_EQ(attribute(gdr, GDR_ATTR_USING_DMA_BUF_MMAP), backend_is("dmabuf"));
	if (!backend_is("gdrdrv"))
		CHECK_EQ(attribute(gdr, GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE), 1);
	CHECK_EQ(gdr_close(gdr), 0);
}

static void an_attribute_that_is_not_known_is_refused(void)
{
	gdr_t gdr = opened();
	int value = 5;

	CHECK_EQ(gdr_get_attribute(gdr, 0, &value), EINVAL);
	CHECK_EQ(gdr_get_attribute(gdr, GDR_ATTR_MAX, &value), EINVAL);
	CHECK_EQ(gdr_get_attribute(gdr, 1000, &value), EINVAL);
	CHECK_EQ(value, 5);
	CHECK_EQ(gdr_close(gdr), 0);
}

static void every_mapping_type_has_a_name(void)
{
	static const char *const names[] = {"None", "Write Combining", "Caching", "Device"};
	const char *name;

	for (int type = 0; type < GDR_MAPPING_TYPE_MAX; type++) {
		CHECK_EQ(gdr_get_mapping_type_string((gdr_mapping_type_t)type, &name), 0);
		CHECK_STR_EQ(name, names[type]);
	}
	CHECK_EQ(gdr_get_mapping_type_string(GDR_MAPPING_TYPE_MAX, &name), EINVAL);
	CHECK_EQ(gdr_get_mapping_type_string((gdr_mapping_type_t)77, &name), EINVAL);
}

static void a_pin_that_lives_has_no_callback_flag(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	gdr_mh_t handle = pinned(gdr, pointer, GRANULE);
	int flag = -1;

	CHECK_EQ(gdr_get_callback_flag(gdr, handle, &flag), 0);
	CHECK_EQ(flag, 0);
	CHECK_EQ(gdr_unpin_buffer(gdr, handle), 0);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void it_can_be_opened_often(void)
{
	gdr_t libraries[50];

	for (int i = 0; i < 50; i++) {
		libraries[i] = opened();
		for (int j = 0; j < i; j++)
			CHECK(libraries[i] != libraries[j]);
	}
	for (int i = 0; i < 50; i++)
		CHECK_EQ(gdr_close(libraries[i]), 0);
}

RIG_MAIN(TEST(the_runtime_is_of_version_2_6), TEST(the_driver_is_of_version_2_6),
	 TEST(attributes_tell_what_pins_are_like), TEST(an_attribute_that_is_not_known_is_refused),
	 TEST(every_mapping_type_has_a_name), TEST(a_pin_that_lives_has_no_callback_flag),
	 TEST(it_can_be_opened_often))
