/* SPDX-License-Identifier: MIT */
/* The node: versions, attributes, features, and what it does not know. */
#include "rig.h"

#include <sys/stat.h>

static const unsigned int commands[] = {
	ABI_PIN_BUFFER,	 ABI_UNPIN_BUFFER, ABI_GET_CB_FLAG,   ABI_GET_INFO,
	ABI_GET_INFO_V2, ABI_GET_ATTR,	   ABI_PIN_BUFFER_V2, ABI_REQ_MAPPING_TYPE,
	ABI_GET_VERSION, ABI_FEATURES,	   ABI_PIN_V3,	      ABI_SHARE,
};
#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

static bool is_known(unsigned int command)
{
	for (size_t i = 0; i < COMMANDS; i++) {
		if (commands[i] == command)
			return true;
	}
	return false;
}

/* As libgdrapi opens and looks. */
static void a_library_of_any_version_2_is_served(void)
{
	struct abi_version version = {0};
	int node = open("/dev/gdrdrv", O_RDWR | O_CLOEXEC);

	CHECK(node >= 0);
	CHECK_EQ(call(node, ABI_GET_VERSION, &version), 0);
	CHECK_EQ(version.gdrdrv_version, 2 << 16 | 6);
	CHECK_EQ(version.minimum_gdr_api_version, 2 << 16);
}

static void anybody_may_open_the_node(void)
{
	struct stat status;

	CHECK_EQ(stat("/dev/gdrdrv", &status), 0);
	CHECK(S_ISCHR(status.st_mode));
	CHECK_EQ(status.st_mode & 0777, 0666);
}

static void attributes_are_those_of_this_driver(void)
{
	struct abi_attr attr = {.attr = ABI_ATTR_PERSISTENT};
	int node = open_node();

	CHECK_EQ(call(node, ABI_GET_ATTR, &attr), 0);
	CHECK_EQ(attr.val, 1);
	attr = (struct abi_attr){.attr = ABI_ATTR_FORCE_PCIE};
	CHECK_EQ(call(node, ABI_GET_ATTR, &attr), 0);
	CHECK_EQ(attr.val, 1);
}

static void an_unknown_attribute_is_invalid(void)
{
	static const uint32_t unknown[] = {0, 3, 4, 1u << 31, ~0u};
	int node = open_node();

	for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
		struct abi_attr attr = {.attr = unknown[i]};

		CHECK_EQ(call(node, ABI_GET_ATTR, &attr), EINVAL);
	}
}

static void features_beyond_2_6_are_told(void)
{
	struct abi_features features = {.size = sizeof(features)};
	int node = open_node();

	CHECK_EQ(call(node, ABI_FEATURES, &features), 0);
	/* PIN_V3, SHARE, EVENTS, FORCE_PCIE, and on other processors DEVICE_TYPE */
	CHECK_EQ(features.features, ON_X86 ? 0xf : 0x1f);
}

static void features_of_another_size_or_with_flags_are_invalid(void)
{
	int node = open_node();

	for (uint32_t size = 0; size < 64; size++) {
		struct abi_features features = {.size = size};

		CHECK_EQ(call(node, ABI_FEATURES, &features), size == 16 ? 0 : EINVAL);
	}
	for (int bit = 0; bit < 32; bit++) {
		struct abi_features features = {.size = sizeof(features), .flags = 1u << bit};

		CHECK_EQ(call(node, ABI_FEATURES, &features), EINVAL);
	}
}

static void an_unknown_type_is_invalid(void)
{
	char room[64] = {0};
	int node = open_node();

	for (unsigned int type = 0; type < 256; type++) {
		/* 'T' and 0: the kernel's own commands for every file. */
		if (type == 0xDA || type == 'T' || type == 0)
			continue;
		for (size_t i = 0; i < COMMANDS; i++)
			CHECK_EQ(call(node, (commands[i] & ~0xff00u) | type << 8, room), EINVAL);
	}
}

static void an_unknown_number_is_no_command(void)
{
	char room[64] = {0};
	int node = open_node();

	for (unsigned int number = 0; number < 256; number++) {
		unsigned int sizes[] = {0, 4, 8, 16, 24, 32, 40, 48};

		for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
			unsigned int command = 0xC000DA00u | sizes[i] << 16 | number;

			if (!is_known(command))
				CHECK_EQ(call(node, command, room), ENOTTY);
		}
	}
}

static void a_command_of_another_direction_is_none(void)
{
	char room[64] = {0};
	int node = open_node();

	for (size_t i = 0; i < COMMANDS; i++) {
		for (unsigned int direction = 0; direction < 3; direction++)
			CHECK_EQ(call(node, (commands[i] & 0x3fffffff) | direction << 30, room),
				 ENOTTY);
	}
}

static void the_node_is_no_file_to_write_or_seek(void)
{
	int node = open_node();

	CHECK_EQ(write(node, "word", 4), -1);
	CHECK_EQ(errno, EINVAL);
	CHECK_EQ(lseek(node, 0, SEEK_SET), -1);
	CHECK_EQ(errno, ESPIPE);
}

RIG_MAIN(TEST(a_library_of_any_version_2_is_served), TEST(anybody_may_open_the_node),
	 TEST(attributes_are_those_of_this_driver), TEST(an_unknown_attribute_is_invalid),
	 TEST(features_beyond_2_6_are_told),
	 TEST(features_of_another_size_or_with_flags_are_invalid), TEST(an_unknown_type_is_invalid),
	 TEST(an_unknown_number_is_no_command), TEST(a_command_of_another_direction_is_none),
	 TEST(the_node_is_no_file_to_write_or_seek))
