/* SPDX-License-Identifier: MIT */
/* The structures of the ioctls, well made and spoilt. */
#include <string.h>
#include <sys/ioctl.h>

#include "fuzz.h"

/* Numbers near which mistakes are made. */
uint64_t some_number(struct random *random)
{
	static const uint64_t edges[] = {
		0,	   1,	       2,	   3,	       4,	   16,
		24,	   4095,       4096,	   65535,      65536,	   1u << 31,
		~0u,	   1ull << 32, 1ull << 47, 1ull << 62, 1ull << 63, ~0ull - 65535,
		~0ull - 1, ~0ull,
	};

	if (once_in(random, 4))
		return random_next(random) >> below(random, 64);
	return edges[below(random, sizeof(edges) / sizeof(edges[0]))];
}

/* Of a pin that lives or lived; near one; or anything. */
uint64_t some_handle(struct random *random, unsigned int node)
{
	uint64_t handle = phase->handles[node][below(random, HANDLES)];

	switch (below(random, 12)) {
	case 0:
		return handle + 1;
	case 1:
		return handle | 1ull << (32 + below(random, 32));
	case 2:
		return some_number(random);
	default:
		return handle;
	}
}

static uint64_t some_address(struct random *random, uint64_t *size)
{
	uint64_t at = below(random, BLOCK_PAGES) * GDRDRV_GPU_PAGE_SIZE;

	*size = (1 + below(random, BLOCK_PAGES)) * GDRDRV_GPU_PAGE_SIZE;
	if (*size > BLOCK_SIZE - at)
		*size = BLOCK_SIZE - at;
	if (once_in(random, 8)) {
		at += below(random, 1000);
		*size = 1 + below(random, 1000);
	}
	return (uintptr_t)phase->blocks[below(random, BLOCKS)] + at;
}

static uint32_t some_pin_v3_flags(struct random *random)
{
	static const uint32_t good[] = {
		0,
		GDRDRV_PIN_V3_PERSISTENT,
		GDRDRV_PIN_V3_REVOCABLE,
		GDRDRV_PIN_V3_REVOCABLE | GDRDRV_PIN_V3_ZERO_AFTER,
		GDRDRV_PIN_V3_PERSISTENT | GDRDRV_PIN_V3_FORCE_PCIE,
	};

	return once_in(random, 8) ? below(random, 32) : good[below(random, 5)];
}

void structure_make(struct structure *structure, struct random *random)
{
	static const unsigned int commands[COMMANDS] = {
		[CALL_PIN] = GDRDRV_IOC_PIN_BUFFER,
		[CALL_PIN_V2] = GDRDRV_IOC_PIN_BUFFER_V2,
		[CALL_PIN_V3] = GDRDRV_IOC_PIN_V3,
		[CALL_UNPIN] = GDRDRV_IOC_UNPIN_BUFFER,
		[CALL_GET_CB_FLAG] = GDRDRV_IOC_GET_CB_FLAG,
		[CALL_GET_INFO] = GDRDRV_IOC_GET_INFO,
		[CALL_GET_INFO_V2] = GDRDRV_IOC_GET_INFO_V2,
		[CALL_GET_ATTR] = GDRDRV_IOC_GET_ATTR,
		[CALL_SET_TYPE] = GDRDRV_IOC_REQ_MAPPING_TYPE,
		[CALL_GET_VERSION] = GDRDRV_IOC_GET_VERSION,
		[CALL_FEATURES] = GDRDRV_IOC_FEATURES,
		[CALL_SHARE] = GDRDRV_IOC_SHARE,
	};
	uint64_t size;

	memset(structure, 0, sizeof(*structure));
	structure->node = below(random, NODES);
	structure->call = below(random, COMMANDS);
	structure->command = commands[structure->call];
	switch (structure->call) {
	case CALL_PIN:
		structure->pin.addr = some_address(random, &size);
		structure->pin.size = size;
		break;
	case CALL_PIN_V2:
		structure->pin_v2.addr = some_address(random, &size);
		structure->pin_v2.size = size;
		structure->pin_v2.flags = below(random, 2);
		break;
	case CALL_PIN_V3:
		structure->pin_v3.size = sizeof(structure->pin_v3);
		structure->pin_v3.flags = some_pin_v3_flags(random);
		structure->pin_v3.addr = some_address(random, &size);
		structure->pin_v3.length = size;
		break;
	case CALL_GET_ATTR:
		structure->attr.attr = below(random, 4);
		break;
	case CALL_FEATURES:
		structure->features.size = sizeof(structure->features);
		break;
	case CALL_SHARE:
		structure->share.size = sizeof(structure->share);
		structure->share.flags = below(random, 2);
		structure->share.handle = some_handle(random, structure->node);
		break;
	case CALL_SET_TYPE:
		structure->type.handle = some_handle(random, structure->node);
		structure->type.mapping_type = below(random, 5);
		break;
	default:
		/* The handle comes first in all others. */
		structure->unpin.handle = some_handle(random, structure->node);
	}
}

static void spoil_command(struct structure *structure, struct random *random)
{
	unsigned int type = GDRDRV_IOCTL_TYPE;

	switch (below(random, 4)) {
	case 0:
		structure->command ^= 1u << below(random, 32);
		break;
	case 1:
		structure->command = _IOC(below(random, 4), type, below(random, 256), 8);
		break;
	case 2:
		structure->command =
			_IOC(3, type, _IOC_NR(structure->command), below(random, 1 << 14));
		break;
	default:
		structure->command = _IOC(3, below(random, 256), _IOC_NR(structure->command), 8);
	}
	structure->call =
		_IOC_TYPE(structure->command) == type ? CALL_UNKNOWN_COMMAND : CALL_OTHER_TYPE;
}

static bool command_is_known(unsigned int command)
{
	switch (command) {
	case GDRDRV_IOC_PIN_BUFFER:
	case GDRDRV_IOC_PIN_BUFFER_V2:
	case GDRDRV_IOC_PIN_V3:
	case GDRDRV_IOC_UNPIN_BUFFER:
	case GDRDRV_IOC_GET_CB_FLAG:
	case GDRDRV_IOC_GET_INFO:
	case GDRDRV_IOC_GET_INFO_V2:
	case GDRDRV_IOC_GET_ATTR:
	case GDRDRV_IOC_REQ_MAPPING_TYPE:
	case GDRDRV_IOC_GET_VERSION:
	case GDRDRV_IOC_FEATURES:
	case GDRDRV_IOC_SHARE:
		return true;
	default:
		return false;
	}
}

/* Some words or bits, or the command; a command that became another known one is left out. */
void structure_spoil(struct structure *structure, struct random *random)
{
	struct structure before = *structure;

	if (once_in(random, 4)) {
		spoil_command(structure, random);
		if (command_is_known(structure->command))
			*structure = before;
		return;
	}
	if (once_in(random, 10)) {
		for (unsigned int i = 0; i < STRUCTURE_SIZE / 4; i++)
			structure->words[i] = random_next(random);
		return;
	}
	for (unsigned int i = 1 + below(random, 2); i--;) {
		if (below(random, 2))
			structure->bytes[below(random, 40)] ^= 1u << below(random, 8);
		else
			structure->words[below(random, 10)] = some_number(random);
	}
}

/* A new handle takes the place of another one, whose pin ends, or now and then lives on. */
static void keep_handle(unsigned int node, uint64_t handle, struct random *random)
{
	struct gdrdrv_unpin_buffer before = {
		.handle = atomic_exchange(&phase->handles[node][below(random, HANDLES)], handle),
	};

	if (before.handle && !once_in(random, 10))
		ioctl(NODE_FD + node, GDRDRV_IOC_UNPIN_BUFFER, &before);
}

void structure_keep_result(const struct structure *structure, struct random *random)
{
	switch (structure->call) {
	case CALL_PIN:
		keep_handle(structure->node, structure->pin.handle, random);
		break;
	case CALL_PIN_V2:
		keep_handle(structure->node, structure->pin_v2.handle, random);
		break;
	case CALL_PIN_V3:
		keep_handle(structure->node, structure->pin_v3.handle, random);
		break;
	case CALL_SHARE:
		install_fd(structure->share.fd, SHARE_FD + below(random, SHARES));
		break;
	default:
		break;
	}
}
