/* SPDX-License-Identifier: MIT */
/* Pinning: which ranges, flags and errors. */
#include "rig.h"

typedef int (*pin_call)(int node, uint64_t addr, uint64_t size, uint64_t *handle);

static int pin_persistent(int node, uint64_t addr, uint64_t size, uint64_t *handle)
{
	return pin_v3(node, addr, size, ABI_V3_PERSISTENT, handle);
}

static int pin_revocable(int node, uint64_t addr, uint64_t size, uint64_t *handle)
{
	return pin_v3(node, addr, size, ABI_V3_REVOCABLE, handle);
}

static const pin_call pin_calls[] = {pin_v1, pin, pin_persistent, pin_revocable};
#define PIN_CALLS (sizeof(pin_calls) / sizeof(pin_calls[0]))

static void check_refused(int node, uint64_t addr, uint64_t size, int error)
{
	uint64_t handle;

	for (size_t i = 0; i < PIN_CALLS; i++) {
		CHECK_EQ(pin_calls[i](node, addr, size, &handle), error);
		CHECK_EQ(gpu_pins(), 0);
	}
}

static void every_way_pins_and_unpins(void)
{
	struct gpu gpu = gpu_alloc(4);
	int node = open_node();
	uint64_t handle;

	for (size_t i = 0; i < PIN_CALLS; i++) {
		CHECK_EQ(pin_calls[i](node, gpu.va, gpu.size, &handle), 0);
		CHECK_EQ(gpu_stats().pinned_pages, 4);
		CHECK_EQ(unpin(node, handle), 0);
		CHECK_EQ(gpu_stats().pinned_pages, 0);
	}
}

static void address_0_and_size_0_are_invalid(void)
{
	struct gpu gpu = gpu_alloc(1);
	int node = open_node();

	check_refused(node, 0, GPU_PAGE, EINVAL);
	check_refused(node, gpu.va, 0, EINVAL);
	check_refused(node, 0, 0, EINVAL);
}

static void memory_that_is_not_the_gpus_is_invalid(void)
{
	struct gpu gpu = gpu_alloc(2);
	int node = open_node();

	check_refused(node, gpu.va - GPU_PAGE, GPU_PAGE, EINVAL);
	check_refused(node, gpu.va + gpu.size, 1, EINVAL);
	check_refused(node, gpu.va, gpu.size + 1, EINVAL);
	check_refused(node, (uintptr_t)gpu.bytes, GPU_PAGE, EINVAL);
}

static void a_range_that_wraps_to_the_same_page_is_invalid(void)
{
	struct gpu gpu = gpu_alloc(1);
	int node = open_node();

	/* Without a look at the overflow this is the range from 32768 to 28672, rounded out. */
	check_refused(node, gpu.va + 32768, -(uint64_t)4096, EINVAL);
	check_refused(node, gpu.va, UINT64_MAX, EINVAL);
	check_refused(node, gpu.va, -gpu.va, EINVAL);
}

static void a_range_that_wraps_by_rounding_is_invalid(void)
{
	struct gpu gpu = gpu_alloc_at(-(uint64_t)GPU_PAGE, 1, 0);
	int node = open_node();

	check_refused(node, gpu.va, GPU_PAGE - 1, EINVAL);
	check_refused(node, gpu.va, GPU_PAGE, EINVAL);
	check_refused(node, gpu.va, GPU_PAGE + 1, EINVAL);
	check_refused(node, UINT64_MAX, 1, EINVAL);
}

static void ranges_are_rounded_out_to_gpu_pages(void)
{
	static const struct {
		uint64_t at, size, first, pages;
	} ranges[] = {
		{0, 1, 0, 1},
		{0, GPU_PAGE, 0, 1},
		{0, GPU_PAGE + 1, 0, 2},
		{4, 100, 0, 1},
		{GPU_PAGE - 1, 2, 0, 2},
		{GPU_PAGE, 1, 1, 1},
		{GPU_PAGE - 1, 1, 0, 1},
		{4096, GPU_PAGE, 0, 2},
		{2 * GPU_PAGE, 1, 2, 1},
		{1, 4 * GPU_PAGE - 1, 0, 4},
	};
	struct gpu gpu = gpu_alloc(4);
	int node = open_node();

	for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
		for (size_t k = 0; k < PIN_CALLS; k++) {
			struct abi_info_v2 info;
			uint64_t handle;

			CHECK_EQ(pin_calls[k](node, gpu.va + ranges[i].at, ranges[i].size, &handle),
				 0);
			CHECK_EQ(get_info_v2(node, handle, &info), 0);
			CHECK_EQ(info.va, gpu.va + ranges[i].first * GPU_PAGE);
			CHECK_EQ(info.mapped_size, ranges[i].pages * GPU_PAGE);
			CHECK_EQ(gpu_stats().pinned_pages, ranges[i].pages);
			CHECK_EQ(unpin(node, handle), 0);
		}
	}
}

static void an_unknown_flag_is_invalid(void)
{
	struct gpu gpu = gpu_alloc(1);
	int node = open_node();
	uint64_t handle;

	for (int bit = 1; bit < 32; bit++) {
		struct abi_pin_v2 argument = {.addr = gpu.va, .size = GPU_PAGE, .flags = 1u << bit};

		CHECK_EQ(call(node, ABI_PIN_BUFFER_V2, &argument), EINVAL);
	}
	for (int bit = 4; bit < 32; bit++)
		CHECK_EQ(pin_v3(node, gpu.va, GPU_PAGE, 1u << bit, &handle), EINVAL);
	CHECK_EQ(gpu_pins(), 0);
}

static void a_pin_that_is_persistent_and_revocable_is_invalid(void)
{
	struct gpu gpu = gpu_alloc(1);
	uint64_t handle;

	CHECK_EQ(pin_v3(open_node(), gpu.va, GPU_PAGE, ABI_V3_PERSISTENT | ABI_V3_REVOCABLE,
			&handle),
		 EINVAL);
}

static void a_pin_v3_of_another_size_is_invalid(void)
{
	struct gpu gpu = gpu_alloc(1);
	int node = open_node();

	for (uint32_t size = 0; size < 64; size++) {
		struct abi_pin_v3 argument = {.size = size, .addr = gpu.va, .length = GPU_PAGE};

		CHECK_EQ(call(node, ABI_PIN_V3, &argument), size == 32 ? 0 : EINVAL);
	}
}

/* Tokens belong to pins that the driver calls back for, and persistence is the default. */
static void a_token_or_a_va_space_is_invalid(void)
{
	struct gpu gpu = gpu_alloc(1);
	struct abi_pin token = {.addr = gpu.va, .size = GPU_PAGE, .p2p_token = 1};
	struct abi_pin va_space = {.addr = gpu.va, .size = GPU_PAGE, .va_space = 1};
	int node = open_node();

	CHECK_EQ(call(node, ABI_PIN_BUFFER, &token), EINVAL);
	CHECK_EQ(call(node, ABI_PIN_BUFFER, &va_space), EINVAL);
	CHECK_EQ(gpu_pins(), 0);
}

static void forced_pcie_reaches_the_driver(void)
{
	struct gpu gpu = gpu_alloc(1);
	struct abi_pin_v2 forced = {.addr = gpu.va, .size = GPU_PAGE, .flags = ABI_FORCE_PCIE};
	uint64_t before = gpu_stats().forced_bar1_pins;
	int node = open_node();
	uint64_t handle;

	set_parameter("gpustandin", "force_bar1", "1");
	CHECK_EQ(call(node, ABI_PIN_BUFFER_V2, &forced), 0);
	CHECK_EQ(gpu_stats().forced_bar1_pins, before + 1);
	CHECK_EQ(pin_v3(node, gpu.va, GPU_PAGE, ABI_V3_PERSISTENT | ABI_V3_FORCE_PCIE, &handle), 0);
	CHECK_EQ(gpu_stats().forced_bar1_pins, before + 2);
	CHECK_EQ(pin(node, gpu.va, GPU_PAGE, &handle), 0);
	CHECK_EQ(gpu_stats().forced_bar1_pins, before + 2);
}

static void forced_pcie_of_a_revocable_pin_is_not_supported(void)
{
	struct gpu gpu = gpu_alloc(1);
	uint64_t handle;

	CHECK_EQ(pin_v3(open_node(), gpu.va, GPU_PAGE, ABI_V3_REVOCABLE | ABI_V3_FORCE_PCIE,
			&handle),
		 EOPNOTSUPP);
}

static void errors_of_the_driver_pass_through(void)
{
	static const int errors[] = {EIO, EINVAL, ENOMEM, EBUSY};
	struct gpu gpu = gpu_alloc(1);
	int node = open_node();
	uint64_t handle;

	for (size_t k = 0; k < sizeof(errors) / sizeof(errors[0]); k++) {
		for (size_t i = 0; i < PIN_CALLS; i++) {
			gpu_fail_next_get(errors[k]);
			CHECK_EQ(pin_calls[i](node, gpu.va, GPU_PAGE, &handle), errors[k]);
		}
	}
	CHECK_EQ(gpu_pins(), 0);
	CHECK_EQ(pin(node, gpu.va, GPU_PAGE, &handle), 0);
}

/* 524 is the kernel's own ENOTSUPP. */
static void the_drivers_not_supported_is_one_that_user_space_knows(void)
{
	struct gpu gpu = gpu_alloc(1);
	int node = open_node();
	uint64_t handle;

	for (size_t i = 0; i < PIN_CALLS; i++) {
		gpu_fail_next_get(524);
		CHECK_EQ(pin_calls[i](node, gpu.va, GPU_PAGE, &handle), EOPNOTSUPP);
	}
}

static void a_page_table_before_580_is_understood(void)
{
	struct gpu gpu = gpu_alloc(2);
	int node = open_node();
	unsigned char *mapped;
	uint64_t handle;

	set_parameter("gpustandin", "table_version", "0x10002");
	for (size_t i = 0; i < PIN_CALLS; i++) {
		CHECK_EQ(pin_calls[i](node, gpu.va, gpu.size, &handle), 0);
		CHECK_EQ(map(node, handle, gpu.size, &mapped), 0);
		mapped[GPU_PAGE + i] = 7;
		CHECK_EQ(gpu.bytes[GPU_PAGE + i], 7);
		CHECK_EQ(munmap(mapped, gpu.size), 0);
		CHECK_EQ(unpin(node, handle), 0);
	}
}

static void a_page_table_of_an_unknown_version_is_refused(void)
{
	struct gpu gpu = gpu_alloc(1);
	int node = open_node();

	set_parameter("gpustandin", "table_version", "0x30000");
	check_refused(node, gpu.va, GPU_PAGE, EPROTO);
}

static void a_driver_without_forced_pcie_refuses_it_itself(void)
{
	struct gpu gpu = gpu_alloc(1);
	struct abi_pin_v2 forced = {.addr = gpu.va, .size = GPU_PAGE, .flags = ABI_FORCE_PCIE};

	set_parameter("gpustandin", "force_bar1", "0");
	CHECK_EQ(call(open_node(), ABI_PIN_BUFFER_V2, &forced), EINVAL);
}

static void a_user_pins_no_more_than_the_limit(void)
{
	struct gpu gpu = gpu_alloc(32);
	int node = open_node();
	uint64_t handle, other;

	set_parameter("gdrdrv", "max_pinned_mib", "1");
	CHECK_EQ(setuid(1000), 0);
	CHECK_EQ(pin(node, gpu.va, (1 << 20) + 1, &handle), EDQUOT);
	CHECK_EQ(pin(node, gpu.va, 1 << 20, &handle), 0);
	CHECK_EQ(pin(node, gpu.va, 1, &other), EDQUOT);
	CHECK_EQ(gpu_pins(), 1);
	CHECK_EQ(unpin(node, handle), 0);
	CHECK_EQ(pin(node, gpu.va, 1, &handle), 0);
}

static void pins_end_with_the_node(void)
{
	struct gpu gpu = gpu_alloc(4);
	int node = open_node();
	uint64_t handle;

	for (int i = 0; i < 100; i++)
		CHECK_EQ(pin(node, gpu.va, gpu.size, &handle), 0);
	CHECK_EQ(gpu_stats().pinned_pages, 400);
	close(node);
	CHECK_EQ(gpu_stats().pinned_pages, 0);
}

RIG_MAIN(TEST(every_way_pins_and_unpins), TEST(address_0_and_size_0_are_invalid),
	 TEST(memory_that_is_not_the_gpus_is_invalid),
	 TEST(a_range_that_wraps_to_the_same_page_is_invalid),
	 TEST(a_range_that_wraps_by_rounding_is_invalid), TEST(ranges_are_rounded_out_to_gpu_pages),
	 TEST(an_unknown_flag_is_invalid), TEST(a_pin_that_is_persistent_and_revocable_is_invalid),
	 TEST(a_pin_v3_of_another_size_is_invalid), TEST(a_token_or_a_va_space_is_invalid),
	 TEST(forced_pcie_reaches_the_driver),
	 TEST(forced_pcie_of_a_revocable_pin_is_not_supported),
	 TEST(errors_of_the_driver_pass_through),
	 TEST(the_drivers_not_supported_is_one_that_user_space_knows),
	 TEST(a_page_table_before_580_is_understood),
	 TEST(a_page_table_of_an_unknown_version_is_refused),
	 TEST(a_driver_without_forced_pcie_refuses_it_itself),
	 TEST(a_user_pins_no_more_than_the_limit), TEST(pins_end_with_the_node))
