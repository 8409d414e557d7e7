/* SPDX-License-Identifier: MIT */
/* A handle is one pin's, in 32 bits; as an offset in CPU pages it maps that pin and no other. */
#include "rig.h"

/* Every command that takes a handle answers so. */
static void check_all(int node, uint64_t handle, int error)
{
	struct abi_info_v2 v2;
	struct abi_info info;
	unsigned char *mapped;
	uint32_t flag;
	int fd;

	CHECK_EQ(get_info(node, handle, &info), error);
	CHECK_EQ(get_info_v2(node, handle, &v2), error);
	CHECK_EQ(get_cb_flag(node, handle, &flag), error);
	CHECK_EQ(request_type(node, handle, ABI_TYPE_WC), error);
	CHECK_EQ(share(node, handle, 0, &fd), error);
	CHECK_EQ(share(node, handle, ABI_READ_ONLY, &fd), error);
	/* What does not fit into an offset is not for mmap. */
	if (handle < (1ull << 62) / CPU_PAGE)
		CHECK_EQ(map(node, handle, CPU_PAGE, &mapped), error);
	CHECK_EQ(unpin(node, handle), error);
}

static void a_handle_that_never_was_is_invalid(void)
{
	struct gpu gpu = gpu_alloc(1);
	int node = open_node();
	uint64_t handle;

	check_all(node, 1, EINVAL);
	CHECK_EQ(pin(node, gpu.va, GPU_PAGE, &handle), 0);
	check_all(node, 0, EINVAL);
	check_all(node, 77777, EINVAL);
	check_all(node, UINT32_MAX, EINVAL);
	check_all(node, UINT64_MAX, EINVAL);
	CHECK_EQ(gpu_pins(), 1);
	check_all(node, handle, 0);
}

static void a_handle_is_matched_in_all_its_bits(void)
{
	struct gpu gpu = gpu_alloc(1);
	int node = open_node();
	uint64_t handle;

	CHECK_EQ(pin(node, gpu.va, GPU_PAGE, &handle), 0);
	for (int bit = 0; bit < 64; bit++)
		check_all(node, handle ^ 1ull << bit, EINVAL);
	check_all(node, handle + 1, EINVAL);
	check_all(node, handle - 1, EINVAL);
	CHECK_EQ(gpu_pins(), 1);
	check_all(node, handle, 0);
}

static void a_handle_that_was_unpinned_is_invalid(void)
{
	struct gpu gpu = gpu_alloc(1);
	int node = open_node();
	uint64_t handle, other;

	CHECK_EQ(pin(node, gpu.va, GPU_PAGE, &other), 0);
	CHECK_EQ(pin(node, gpu.va, GPU_PAGE, &handle), 0);
	CHECK_EQ(unpin(node, handle), 0);
	check_all(node, handle, EINVAL);
	CHECK_EQ(gpu_pins(), 1);
	check_all(node, other, 0);
}

static void a_handle_of_another_open_is_invalid(void)
{
	struct gpu gpu = gpu_alloc(1);
	int node = open_node(), other = open_node();
	uint64_t handle, same;

	CHECK_EQ(pin(node, gpu.va, GPU_PAGE, &handle), 0);
	check_all(other, handle, EINVAL);
	CHECK_EQ(pin(other, gpu.va, GPU_PAGE, &same), 0);
	CHECK_EQ(unpin(other, same), 0);
	check_all(node, handle, 0);
}

static void handles_of_live_pins_are_different_and_fit_into_32_bits(void)
{
	enum {
		PINS = 300
	};
	struct gpu gpu = gpu_alloc(2);
	int node = open_node();
	uint64_t handles[PINS];

	for (int i = 0; i < PINS; i++) {
		CHECK_EQ(pin(node, gpu.va + i % 2 * GPU_PAGE, GPU_PAGE, &handles[i]), 0);
		CHECK(handles[i] > 0 && handles[i] <= UINT32_MAX);
		for (int k = 0; k < i; k++)
			CHECK(handles[k] != handles[i]);
	}
	for (int i = 0; i < PINS; i++)
		check_all(node, handles[i], 0);
}

/* Who keeps one too long must not act on a buffer that came after. */
static void a_handle_is_not_given_again_soon(void)
{
	struct gpu gpu = gpu_alloc(1);
	int node = open_node();
	uint64_t last = 0, handle;

	for (int i = 0; i < 200; i++) {
		CHECK_EQ(pin(node, gpu.va, GPU_PAGE, &handle), 0);
		CHECK(handle > last);
		last = handle;
		CHECK_EQ(unpin(node, handle), 0);
	}
}

static void two_small_buffers_in_one_gpu_page_are_two_pins(void)
{
	struct gpu gpu = gpu_alloc(1);
	int node = open_node();
	struct abi_info_v2 info;
	uint64_t one, two;

	CHECK_EQ(pin(node, gpu.va + 4, 100, &one), 0);
	CHECK_EQ(pin(node, gpu.va + 200, 100, &two), 0);
	CHECK(one != two);
	CHECK_EQ(gpu_pins(), 2);
	CHECK_EQ(unpin(node, one), 0);
	CHECK_EQ(get_info_v2(node, two, &info), 0);
	CHECK_EQ(info.va, gpu.va);
	CHECK_EQ(info.mapped_size, GPU_PAGE);
	CHECK_EQ(unpin(node, two), 0);
}

static void two_pins_of_one_buffer_are_mapped_at_once(void)
{
	struct gpu gpu = gpu_alloc(2);
	int node = open_node();
	unsigned char *first, *second;
	uint64_t one, two;

	CHECK_EQ(pin(node, gpu.va, gpu.size, &one), 0);
	CHECK_EQ(pin(node, gpu.va, gpu.size, &two), 0);
	CHECK_EQ(map(node, one, gpu.size, &first), 0);
	CHECK_EQ(map(node, two, gpu.size, &second), 0);
	first[GPU_PAGE + 1] = 11;
	CHECK_EQ(second[GPU_PAGE + 1], 11);
	CHECK_EQ(unpin(node, one), 0);
	CHECK_EQ(store_signal(first), SIGBUS);
	CHECK_EQ(second[GPU_PAGE + 1], 11);
}

static void each_offset_maps_its_own_pin(void)
{
	enum {
		PINS = 16
	};
	struct gpu gpu = gpu_alloc(PINS);
	int node = open_node();
	uint64_t handles[PINS];
	unsigned char *mapped;

	for (int i = 0; i < PINS; i++)
		CHECK_EQ(pin(node, gpu.va + i * GPU_PAGE, GPU_PAGE, &handles[i]), 0);
	for (int i = PINS - 1; i >= 0; i--) {
		CHECK_EQ(map(node, handles[i], GPU_PAGE, &mapped), 0);
		mapped[i] = i + 1;
		CHECK_EQ(gpu.bytes[i * GPU_PAGE + i], i + 1);
	}
}

RIG_MAIN(TEST(a_handle_that_never_was_is_invalid), TEST(a_handle_is_matched_in_all_its_bits),
	 TEST(a_handle_that_was_unpinned_is_invalid), TEST(a_handle_of_another_open_is_invalid),
	 TEST(handles_of_live_pins_are_different_and_fit_into_32_bits),
	 TEST(a_handle_is_not_given_again_soon),
	 TEST(two_small_buffers_in_one_gpu_page_are_two_pins),
	 TEST(two_pins_of_one_buffer_are_mapped_at_once), TEST(each_offset_maps_its_own_pin))
