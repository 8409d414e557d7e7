/* SPDX-License-Identifier: MIT */
/*
 * GPU memory that the CPU caches, as Grace has: for a stand-in that was loaded with ram=1, on a
 * processor where such memory is RAM to the kernel.
 */
#include "rig.h"

/* The drivers before 580 have no flag that says so. */
static void ram_is_mapped_cached_though_the_page_table_does_not_tell(void)
{
	struct abi_info_v2 info;
	unsigned char *mapped;
	struct gpu gpu;
	uint64_t handle;
	int node = open_node();

	set_parameter("gpustandin", "table_version", "0x10002");
	gpu = gpu_alloc(2);
	CHECK_EQ(pin(node, gpu.va, gpu.size, &handle), 0);
	CHECK_EQ(request_type(node, handle, ABI_TYPE_WC), EOPNOTSUPP);
	CHECK_EQ(request_type(node, handle, ABI_TYPE_DEVICE), EOPNOTSUPP);
	CHECK_EQ(map(node, handle, gpu.size, &mapped), 0);
	CHECK_EQ(get_info_v2(node, handle, &info), 0);
	CHECK_EQ(info.mapping_type, ABI_TYPE_CACHED);
	for (size_t at = 0; at < gpu.size; at += CPU_PAGE) {
		mapped[at] = 8;
		CHECK_EQ(gpu.bytes[at], 8);
		CHECK_EQ(cache_mode(mapped + at), GPUSTANDIN_WB);
	}
}

RIG_MAIN(TEST(ram_is_mapped_cached_though_the_page_table_does_not_tell))
