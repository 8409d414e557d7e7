/* SPDX-License-Identifier: MIT */
/* Uses the names that a program may have from gdrapi.h, in C and in C++ alike. */
#include <gdrapi.h>
#include <stdio.h>

int main(void)
{
	const gdr_map_flags_t map_flags[] = {GDR_MAP_FLAG_DEFAULT, GDR_MAP_FLAG_REQ_WC_MAPPING,
					     GDR_MAP_FLAG_REQ_CACHE_MAPPING,
					     GDR_MAP_FLAG_REQ_DEVICE_MAPPING};
	const gdr_mapping_type_t types[] = {GDR_MAPPING_TYPE_NONE, GDR_MAPPING_TYPE_WC,
					    GDR_MAPPING_TYPE_CACHING, GDR_MAPPING_TYPE_DEVICE};
	const gdr_pin_flags_t pin_flags[] = {GDR_PIN_FLAG_DEFAULT, GDR_PIN_FLAG_FORCE_PCIE};
	const gdr_attr_t attributes[] = {GDR_ATTR_USE_PERSISTENT_MAPPING,
					 GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE,
					 GDR_ATTR_USING_DMA_BUF_MMAP};
	struct gdr_info_v2 info = {0, 0, 0, 0, 0, 0, 0, GDR_MAPPING_TYPE_NONE};
	gdr_info_t *same = &info;
	gdr_mh_t handle = {0};
	gdr_t gdr = gdr_open();
	const char *name;
	int major, minor;

	if (!gdr || gdr_get_info(gdr, handle, same) != 22)
		return 1;
	if (gdr_get_mapping_type_string(types[1], &name) || gdr_close(gdr))
		return 1;
	gdr_runtime_get_version(&major, &minor);
	printf("%d.%d %d %s\n", major, minor, (int)sizeof(gdr_info_v2_t), name);
	printf("%d %d %d %d\n", map_flags[3], pin_flags[1], attributes[2], GDR_MAPPING_TYPE_MAX);
	printf("%lu %lx %#x %d\n", (unsigned long)GPU_PAGE_SIZE, GPU_PAGE_MASK + GPU_PAGE_OFFSET,
	       (unsigned int)GDR_API_VERSION, GPU_PAGE_SHIFT);
	printf("%d %d\n", MINIMUM_GDRDRV_VERSION >> MAJOR_VERSION_SHIFT, GDR_ATTR_MAX);
	return 0;
}
