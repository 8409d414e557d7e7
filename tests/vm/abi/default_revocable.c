/* SPDX-License-Identifier: MIT */
/* The module loaded with use_persistent_mapping=0: pins are revocable unless asked otherwise. */
#include "rig.h"

static void the_attribute_says_so(void)
{
	struct abi_attr attr = {.attr = ABI_ATTR_PERSISTENT};

	CHECK_EQ(call(open_node(), ABI_GET_ATTR, &attr), 0);
	CHECK_EQ(attr.val, 0);
}

static void every_pin_without_a_choice_is_revoked(void)
{
	struct gpu gpu = gpu_alloc(1);
	int node = open_node();
	unsigned char *mapped;
	uint64_t handles[3];
	uint32_t flag;

	CHECK_EQ(pin_v1(node, gpu.va, GPU_PAGE, &handles[0]), 0);
	CHECK_EQ(pin(node, gpu.va, GPU_PAGE, &handles[1]), 0);
	CHECK_EQ(pin_v3(node, gpu.va, GPU_PAGE, 0, &handles[2]), 0);
	CHECK_EQ(gpu_stats().persistent_pins, 0);
	CHECK_EQ(map(node, handles[1], GPU_PAGE, &mapped), 0);
	CHECK_EQ(store_signal(mapped), 0);
	gpu_free(&gpu);
	CHECK_EQ(store_signal(mapped), SIGBUS);
	for (int i = 0; i < 3; i++) {
		CHECK_EQ(get_cb_flag(node, handles[i], &flag), 0);
		CHECK_EQ(flag, 1);
		CHECK_EQ(unpin(node, handles[i]), 0);
	}
}

/* The token is right: nvidia.ko would take it. */
static void a_token_or_a_va_space_is_invalid(void)
{
	struct gpu gpu = gpu_alloc(1);
	struct gpustandin_block block;
	struct abi_pin token = {.addr = gpu.va, .size = GPU_PAGE};
	struct abi_pin va_space = {.addr = gpu.va, .size = GPU_PAGE, .va_space = 7};
	int node = open_node();

	CHECK_EQ(call(gpu.fd, GPUSTANDIN_INFO, &block), 0);
	token.p2p_token = block.id;
	CHECK_EQ(call(node, ABI_PIN_BUFFER, &token), EINVAL);
	CHECK_EQ(call(node, ABI_PIN_BUFFER, &va_space), EINVAL);
	CHECK_EQ(gpu_pins(), 0);
}

static void a_persistent_pin_can_be_asked_for(void)
{
	struct gpu gpu = gpu_alloc(1);
	uint64_t handle;

	CHECK_EQ(pin_v3(open_node(), gpu.va, GPU_PAGE, ABI_V3_PERSISTENT, &handle), 0);
	CHECK_EQ(gpu_stats().persistent_pins, 1);
}

static void forced_pcie_is_not_supported(void)
{
	struct gpu gpu = gpu_alloc(1);
	struct abi_pin_v2 argument = {.addr = gpu.va, .size = GPU_PAGE, .flags = ABI_FORCE_PCIE};

	CHECK_EQ(call(open_node(), ABI_PIN_BUFFER_V2, &argument), EOPNOTSUPP);
}

RIG_MAIN(TEST(the_attribute_says_so), TEST(every_pin_without_a_choice_is_revoked),
	 TEST(a_token_or_a_va_space_is_invalid), TEST(a_persistent_pin_can_be_asked_for),
	 TEST(forced_pcie_is_not_supported))
