/* SPDX-License-Identifier: MIT */
/* Bad pointers in and out: EFAULT, and nothing is left behind. */
#include "rig.h"

struct command {
	unsigned int number;
	size_t size; /* of the structure, whatever the number says */
};

static const struct command commands[] = {
	{ABI_PIN_BUFFER, 40}, {ABI_PIN_BUFFER_V2, 32},
	{ABI_PIN_V3, 32},     {ABI_GET_CB_FLAG, 16},
	{ABI_GET_INFO, 48},   {ABI_GET_INFO_V2, 48},
	{ABI_GET_ATTR, 8},    {ABI_REQ_MAPPING_TYPE, 16},
	{ABI_GET_VERSION, 8}, {ABI_FEATURES, 16},
	{ABI_SHARE, 24},      {ABI_UNPIN_BUFFER, 8},
};
#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

/* An argument that is right, for a pin that may be used up. */
static void fill(void *to, unsigned int number, uint64_t va, uint64_t handle)
{
	struct abi_pin pin = {.addr = va, .size = GPU_PAGE};
	struct abi_pin_v2 pin_v2 = {.addr = va, .size = GPU_PAGE};
	struct abi_pin_v3 pin_v3 = {.size = sizeof(pin_v3), .addr = va, .length = GPU_PAGE};
	struct abi_attr attr = {.attr = ABI_ATTR_PERSISTENT};
	struct abi_req_mapping_type type = {.handle = handle, .mapping_type = ABI_TYPE_WC};
	struct abi_features features = {.size = sizeof(features)};
	struct abi_share share = {.size = sizeof(share), .handle = handle};

	switch (number) {
	case ABI_PIN_BUFFER:
		memcpy(to, &pin, sizeof(pin));
		break;
	case ABI_PIN_BUFFER_V2:
		memcpy(to, &pin_v2, sizeof(pin_v2));
		break;
	case ABI_PIN_V3:
		memcpy(to, &pin_v3, sizeof(pin_v3));
		break;
	case ABI_GET_ATTR:
		memcpy(to, &attr, sizeof(attr));
		break;
	case ABI_REQ_MAPPING_TYPE:
		memcpy(to, &type, sizeof(type));
		break;
	case ABI_FEATURES:
		memcpy(to, &features, sizeof(features));
		break;
	case ABI_SHARE:
		memcpy(to, &share, sizeof(share));
		break;
	default:
		memcpy(to, &handle, sizeof(handle));
	}
}

/* A page with nothing behind it, which stays so. */
static unsigned char *lonely_page(void)
{
	unsigned char *pages = mmap(NULL, 2 * CPU_PAGE, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(pages != MAP_FAILED);
	CHECK_EQ(mprotect(pages + CPU_PAGE, CPU_PAGE, PROT_NONE), 0);
	return pages;
}

static int lowest_free_fd(void)
{
	int fd = dup(0);

	close(fd);
	return fd;
}

static void an_argument_that_is_not_there_is_a_fault(void)
{
	unsigned char *hidden = mmap(NULL, CPU_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void *const nowhere[] = {NULL, (void *)8, (void *)0xffff888000000000,
				 (void *)0xfffffffffffffff8, hidden};
	int node = open_node();

	for (size_t i = 0; i < COMMANDS; i++) {
		for (size_t k = 0; k < sizeof(nowhere) / sizeof(nowhere[0]); k++)
			CHECK_EQ(call(node, commands[i].number, nowhere[k]), EFAULT);
	}
	CHECK_EQ(gpu_pins(), 0);
}

/* The number of some commands tells 8 bytes: what counts is the structure. */
static void each_structure_has_the_size_of_the_table(void)
{
	unsigned char *page = lonely_page();
	struct gpu gpu = gpu_alloc(1);
	int node = open_node();

	for (size_t i = 0; i < COMMANDS; i++) {
		unsigned char *last = page + CPU_PAGE - commands[i].size;
		unsigned char argument[64] = {0};
		uint64_t handle, pins;

		CHECK_EQ(pin(node, gpu.va, GPU_PAGE, &handle), 0);
		pins = gpu_pins();
		fill(argument, commands[i].number, gpu.va, handle);

		memcpy(last + 1, argument, commands[i].size - 1);
		CHECK_EQ(call(node, commands[i].number, last + 1), EFAULT);
		CHECK_EQ(gpu_pins(), pins);

		memcpy(last, argument, commands[i].size);
		CHECK_EQ(call(node, commands[i].number, last), 0);
	}
}

static void an_answer_that_cannot_be_given_leaves_nothing(void)
{
	unsigned char *page = lonely_page();
	struct gpu gpu = gpu_alloc(1);
	int node = open_node();
	uint64_t handle;
	int fd;

	CHECK_EQ(pin(node, gpu.va, GPU_PAGE, &handle), 0);
	fd = lowest_free_fd();
	for (size_t i = 0; i < COMMANDS; i++) {
		bool answers = commands[i].number != ABI_UNPIN_BUFFER &&
			       commands[i].number != ABI_REQ_MAPPING_TYPE;

		if (!answers)
			continue;
		CHECK_EQ(mprotect(page, CPU_PAGE, PROT_READ | PROT_WRITE), 0);
		fill(page, commands[i].number, gpu.va, handle);
		CHECK_EQ(mprotect(page, CPU_PAGE, PROT_READ), 0);
		CHECK_EQ(call(node, commands[i].number, page), EFAULT);
		CHECK_EQ(gpu_pins(), 1);
		CHECK_EQ(lowest_free_fd(), fd);
	}
	/* Nor is it found by the handle that it would have had. */
	CHECK_EQ(unpin(node, handle + 1), EINVAL);
	CHECK_EQ(unpin(node, handle), 0);
}

static void a_command_without_answer_reads_from_read_only_memory(void)
{
	unsigned char *page = lonely_page();
	struct gpu gpu = gpu_alloc(1);
	int node = open_node();
	uint64_t handle;

	CHECK_EQ(pin(node, gpu.va, GPU_PAGE, &handle), 0);
	fill(page, ABI_REQ_MAPPING_TYPE, gpu.va, handle);
	CHECK_EQ(mprotect(page, CPU_PAGE, PROT_READ), 0);
	CHECK_EQ(call(node, ABI_REQ_MAPPING_TYPE, page), 0);
	CHECK_EQ(call(node, ABI_UNPIN_BUFFER, page), 0);
}

RIG_MAIN(TEST(an_argument_that_is_not_there_is_a_fault),
	 TEST(each_structure_has_the_size_of_the_table),
	 TEST(an_answer_that_cannot_be_given_leaves_nothing),
	 TEST(a_command_without_answer_reads_from_read_only_memory))
