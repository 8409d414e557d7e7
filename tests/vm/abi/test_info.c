/* SPDX-License-Identifier: MIT */
/* What is told about a pin, and the type of its mappings. */
#include "rig.h"

static uint32_t mapping_type(int node, uint64_t handle)
{
	struct abi_info_v2 info;

	CHECK_EQ(get_info_v2(node, handle, &info), 0);
	return info.mapping_type;
}

static void info_tells_the_pins_range_and_mapping(void)
{
	struct gpu gpu = gpu_alloc(4);
	int node = open_node();
	struct abi_info_v2 v2;
	struct abi_info info;
	unsigned char *mapped = NULL;
	uint64_t handle;

	CHECK_EQ(pin(node, gpu.va + GPU_PAGE, 2 * GPU_PAGE, &handle), 0);
	for (int is_mapped = 0; is_mapped < 2; is_mapped++) {
		CHECK_EQ(get_info(node, handle, &info), 0);
		CHECK_EQ(get_info_v2(node, handle, &v2), 0);
		CHECK_EQ(info.handle, handle);
		CHECK_EQ(info.va, gpu.va + GPU_PAGE);
		CHECK_EQ(info.mapped_size, 2 * GPU_PAGE);
		CHECK_EQ(info.page_size, GPU_PAGE);
		/* Time stamps are for any module to read there only. */
		CHECK_EQ(info.tsc_khz > 0, ON_X86);
		CHECK_EQ(info.tm_cycles > 0, ON_X86);
		CHECK_EQ(info.mapped, is_mapped);
		CHECK_EQ(info.wc_mapping, is_mapped);

		CHECK_EQ(v2.mapping_type, is_mapped ? ABI_TYPE_WC : ABI_TYPE_NONE);
		CHECK_MEM_EQ(&v2, &info, offsetof(struct abi_info_v2, mapping_type));
		if (!is_mapped)
			CHECK_EQ(map(node, handle, 2 * GPU_PAGE, &mapped), 0);
	}
	CHECK_EQ(munmap(mapped, 2 * GPU_PAGE), 0);
	CHECK_EQ(mapping_type(node, handle), ABI_TYPE_NONE);
}

static void the_callback_flag_tells_that_the_memory_was_freed(void)
{
	struct gpu gpu = gpu_alloc(1);
	uint64_t revocable, persistent;
	int node = open_node();
	uint32_t flag;

	CHECK_EQ(pin_v3(node, gpu.va, GPU_PAGE, ABI_V3_REVOCABLE, &revocable), 0);
	CHECK_EQ(pin_v3(node, gpu.va, GPU_PAGE, ABI_V3_PERSISTENT, &persistent), 0);
	CHECK_EQ(get_cb_flag(node, revocable, &flag), 0);
	CHECK_EQ(flag, 0);
	gpu_free(&gpu);
	CHECK_EQ(get_cb_flag(node, revocable, &flag), 0);
	CHECK_EQ(flag, 1);
	CHECK_EQ(get_cb_flag(node, persistent, &flag), 0);
	CHECK_EQ(flag, 0);
}

static void a_type_that_is_not_known_is_invalid(void)
{
	static const uint32_t unknown[] = {4, 1u << 31, ~0u};
	struct gpu gpu = gpu_alloc(1);
	int node = open_node();
	uint64_t handle;

	CHECK_EQ(pin(node, gpu.va, GPU_PAGE, &handle), 0);
	for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++)
		CHECK_EQ(request_type(node, handle, unknown[i]), EINVAL);
}

/* On x86 each kind of memory has one type only, so "busy" is never the answer. */
static void memory_of_a_bar_is_never_cached(void)
{
	struct gpu gpu = gpu_alloc(1);
	int node = open_node();
	unsigned char *mapped;
	uint64_t handle;

	CHECK_EQ(pin(node, gpu.va, GPU_PAGE, &handle), 0);
	for (int is_mapped = 0; is_mapped < 2; is_mapped++) {
		CHECK_EQ(request_type(node, handle, ABI_TYPE_WC), 0);
		CHECK_EQ(request_type(node, handle, ABI_TYPE_NONE), 0);
		CHECK_EQ(request_type(node, handle, ABI_TYPE_CACHED), EOPNOTSUPP);
		if (ON_X86)
			CHECK_EQ(request_type(node, handle, ABI_TYPE_DEVICE), EOPNOTSUPP);
		else if (is_mapped)
			CHECK_EQ(request_type(node, handle, ABI_TYPE_DEVICE), EBUSY);
		if (!is_mapped)
			CHECK_EQ(map(node, handle, GPU_PAGE, &mapped), 0);
	}
	CHECK_EQ(mapping_type(node, handle), ABI_TYPE_WC);
}

/* A processor that has it has no other way for some hosts of GPUs. */
static void memory_of_a_bar_is_a_device_where_the_processor_knows_such(void)
{
	struct gpu gpu = gpu_alloc(2);
	int node = open_node();
	unsigned char *mapped;
	uint64_t handle;

	CHECK_EQ(pin(node, gpu.va, gpu.size, &handle), 0);
	CHECK_EQ(request_type(node, handle, ABI_TYPE_DEVICE), ON_X86 ? EOPNOTSUPP : 0);
	CHECK_EQ(map(node, handle, gpu.size, &mapped), 0);
	CHECK_EQ(mapping_type(node, handle), ON_X86 ? ABI_TYPE_WC : ABI_TYPE_DEVICE);
	for (size_t at = 0; at < gpu.size; at += CPU_PAGE) {
		*(volatile uint32_t *)(mapped + at) = 1 + at;
		CHECK_EQ(*(uint32_t *)(gpu.bytes + at), 1 + at);
		CHECK_EQ(cache_mode(mapped + at), ON_X86 ? GPUSTANDIN_WC : GPUSTANDIN_UC);
	}
	CHECK_EQ(request_type(node, handle, ABI_TYPE_WC), ON_X86 ? 0 : EBUSY);
}

static void cacheable_memory_is_cached_only(void)
{
	struct gpu gpu = gpu_alloc(1);
	int node = open_node();
	struct abi_info info;
	unsigned char *mapped;
	uint64_t handle;

	set_parameter("gpustandin", "table_flags", "1");
	CHECK_EQ(pin(node, gpu.va, GPU_PAGE, &handle), 0);
	CHECK_EQ(request_type(node, handle, ABI_TYPE_WC), EOPNOTSUPP);
	CHECK_EQ(request_type(node, handle, ABI_TYPE_DEVICE), EOPNOTSUPP);
	CHECK_EQ(request_type(node, handle, ABI_TYPE_CACHED), 0);
	CHECK_EQ(request_type(node, handle, ABI_TYPE_NONE), 0);
	CHECK_EQ(map(node, handle, GPU_PAGE, &mapped), 0);
	CHECK_EQ(mapping_type(node, handle), ABI_TYPE_CACHED);
	CHECK_EQ(get_info(node, handle, &info), 0);
	CHECK_EQ(info.mapped, 1);
	CHECK_EQ(info.wc_mapping, 0);
	mapped[5] = 5;
	CHECK_EQ(gpu.bytes[5], 5);
	/* On x86 a module cannot have a BAR recorded so. */
	CHECK_EQ(cache_mode(mapped), ON_X86 ? GPUSTANDIN_UC_MINUS : GPUSTANDIN_WB);
}

static void a_type_of_a_revoked_pin_is_invalid(void)
{
	struct gpu gpu = gpu_alloc(1);
	int node = open_node();
	uint64_t handle;

	CHECK_EQ(pin_v3(node, gpu.va, GPU_PAGE, ABI_V3_REVOCABLE, &handle), 0);
	gpu_free(&gpu);
	CHECK_EQ(request_type(node, handle, ABI_TYPE_WC), EINVAL);
}

RIG_MAIN(TEST(info_tells_the_pins_range_and_mapping),
	 TEST(the_callback_flag_tells_that_the_memory_was_freed),
	 TEST(a_type_that_is_not_known_is_invalid), TEST(memory_of_a_bar_is_never_cached),
	 TEST(memory_of_a_bar_is_a_device_where_the_processor_knows_such),
	 TEST(cacheable_memory_is_cached_only), TEST(a_type_of_a_revoked_pin_is_invalid))
