/* SPDX-License-Identifier: MIT */
/* The commands of /dev/gdrdrv as functions, which return 0 or the errno. */
#ifndef CALLS_H
#define CALLS_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "abi.h"

#define CPU_PAGE ((size_t)sysconf(_SC_PAGESIZE))

#ifdef __x86_64__
#define ON_X86 true
#else
#define ON_X86 false
#endif

static inline int call(int node, unsigned int command, void *argument)
{
	return ioctl(node, command, argument) == -1 ? errno : 0;
}

static inline int open_node(void)
{
	return open("/dev/gdrdrv", O_RDWR | O_CLOEXEC);
}

static inline int pin_v1(int node, uint64_t addr, uint64_t size, uint64_t *handle)
{
	struct abi_pin argument = {.addr = addr, .size = size};
	int error = call(node, ABI_PIN_BUFFER, &argument);

	*handle = argument.handle;
	return error;
}

static inline int pin(int node, uint64_t addr, uint64_t size, uint64_t *handle)
{
	struct abi_pin_v2 argument = {.addr = addr, .size = size};
	int error = call(node, ABI_PIN_BUFFER_V2, &argument);

	*handle = argument.handle;
	return error;
}

static inline int pin_v3(int node, uint64_t addr, uint64_t length, uint32_t flags, uint64_t *handle)
{
	struct abi_pin_v3 argument = {
		.size = sizeof(argument), .flags = flags, .addr = addr, .length = length};
	int error = call(node, ABI_PIN_V3, &argument);

	*handle = argument.handle;
	return error;
}

static inline int unpin(int node, uint64_t handle)
{
	struct abi_unpin argument = {.handle = handle};

	return call(node, ABI_UNPIN_BUFFER, &argument);
}

static inline int get_info(int node, uint64_t handle, struct abi_info *info)
{
	*info = (struct abi_info){.handle = handle};
	return call(node, ABI_GET_INFO, info);
}

static inline int get_info_v2(int node, uint64_t handle, struct abi_info_v2 *info)
{
	*info = (struct abi_info_v2){.handle = handle};
	return call(node, ABI_GET_INFO_V2, info);
}

static inline int get_cb_flag(int node, uint64_t handle, uint32_t *flag)
{
	struct abi_cb_flag argument = {.handle = handle, .flag = ~0u};
	int error = call(node, ABI_GET_CB_FLAG, &argument);

	*flag = argument.flag;
	return error;
}

static inline int request_type(int node, uint64_t handle, uint32_t type)
{
	struct abi_req_mapping_type argument = {.handle = handle, .mapping_type = type};

	return call(node, ABI_REQ_MAPPING_TYPE, &argument);
}

static inline int share(int node, uint64_t handle, uint32_t flags, int *fd)
{
	struct abi_share argument = {
		.size = sizeof(argument), .flags = flags, .handle = handle, .fd = -1};
	int error = call(node, ABI_SHARE, &argument);

	*fd = argument.fd;
	return error;
}

static inline int map_at(int fd, size_t size, int protection, int flags, uint64_t offset,
			 unsigned char **mapped)
{
	void *found = mmap(NULL, size, protection, flags, fd, (off_t)offset);

	*mapped = found;
	return found == MAP_FAILED ? errno : 0;
}

/* As libgdrapi maps. */
static inline int map(int node, uint64_t handle, size_t size, unsigned char **mapped)
{
	return map_at(node, size, PROT_READ | PROT_WRITE, MAP_SHARED, handle * CPU_PAGE, mapped);
}

static inline int map_share(int fd, uint64_t offset, size_t size, unsigned char **mapped)
{
	return map_at(fd, size, PROT_READ | PROT_WRITE, MAP_SHARED, offset, mapped);
}

/* The bytes of the events that were read, or minus the errno. */
static inline ssize_t read_events(int node, struct abi_event *events, size_t room)
{
	ssize_t got = read(node, events, room * sizeof(*events));

	return got == -1 ? -errno : got;
}

#endif
