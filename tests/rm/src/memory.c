/* SPDX-License-Identifier: MIT */
#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "abi.h"
#include "libc.h"
#include "machine.h"

#define PID_BITS 0x00FFFFFFu

/* Parse the target of a /proc/<pid>/fd link: "/memfd:gdrpy-sim-dev3 (deleted)". */
static uint32_t device_of_link(const char *link, uint32_t *device_instance)
{
	char target[64], canonical[64];
	ssize_t length = readlink(link, target, sizeof(target) - 1);

	if (length < 0)
		return errno == EACCES || errno == EPERM ? RM_INSUFFICIENT_PERMISSIONS
							 : RM_INVALID_PARAMETER;
	target[length] = '\0';
	if (sscanf(target, "/memfd:gdrpy-sim-dev%u", device_instance) != 1)
		return RM_INVALID_PARAMETER;
	snprintf(canonical, sizeof(canonical), "/memfd:gdrpy-sim-dev%u (deleted)",
		 *device_instance);
	if (strcmp(target, canonical) || *device_instance >= machine()->devices)
		return RM_INVALID_PARAMETER;
	return RM_OK;
}

uint32_t memory_device(int fd, uint32_t *device_instance)
{
	char link[32];

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	return device_of_link(link, device_instance);
}

uint32_t memory_hold(int fd, struct memory *memory)
{
	uint32_t status = memory_device(fd, &memory->device_instance);
	struct stat st;

	if (status)
		return status;
	if (libc()->fstat(fd, &st) || st.st_size <= 0 || st.st_size % getpagesize())
		return RM_INVALID_PARAMETER;

	memory->kind = MEMORY_BLOCK;
	memory->read_only = false;
	memory->size = st.st_size;
	memory->hold = libc()->mmap(NULL, memory->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory->hold == MAP_FAILED)
		return errno == ENOMEM ? RM_NO_MEMORY : RM_INSUFFICIENT_PERMISSIONS;
	return RM_OK;
}

uint32_t memory_hold_by_ipc(uint32_t client, uint32_t object, struct memory *memory)
{
	uint32_t status;
	char link[48];
	int fd;

	if ((client & ~PID_BITS) != IPC_CLIENT_BITS)
		return RM_INVALID_CLIENT;
	snprintf(link, sizeof(link), "/proc/%u", client & PID_BITS);
	if (libc()->faccessat(AT_FDCWD, link, F_OK, 0))
		return RM_INVALID_CLIENT;

	/* Look at the link before opening: opening a stranger's pipe or terminal may block. */
	snprintf(link, sizeof(link), "/proc/%u/fd/%u", client & PID_BITS, object);
	status = device_of_link(link, &memory->device_instance);
	if (status)
		return status == RM_INVALID_PARAMETER ? RM_OBJECT_NOT_FOUND : status;

	fd = libc()->openat(AT_FDCWD, link, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return RM_INSUFFICIENT_PERMISSIONS;
	status = memory_hold(fd, memory);
	libc()->close(fd);
	return status;
}

uint32_t memory_hold_again(const struct memory *memory, struct memory *again)
{
	if (memory->kind != MEMORY_BLOCK)
		return RM_NOT_SUPPORTED; /* stricter than the driver */
	*again = *memory;
	again->hold = mremap(memory->hold, 0, memory->size, MREMAP_MAYMOVE);
	return again->hold == MAP_FAILED ? RM_NO_MEMORY : RM_OK;
}

uint32_t memory_new(enum memory_kind kind, uint32_t device_instance, size_t size,
		    struct memory *memory)
{
	*memory = (struct memory){.kind = kind, .device_instance = device_instance, .size = size};
	memory->hold = libc()->mmap(NULL, size, PROT_READ | PROT_WRITE,
				    MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return memory->hold == MAP_FAILED ? RM_NO_MEMORY : RM_OK;
}

/* Whether the kernel would let a device write to a shared mapping of the file for ever. */
static bool is_memory_file(const char *path)
{
	struct statfs fs;

	if (!strncmp(path, "/memfd:", 7) || !strcmp(path, "/dev/zero (deleted)") ||
	    !strncmp(path, "/SYSV", 5))
		return true;
	return !statfs(path, &fs) && (fs.f_type == TMPFS_MAGIC || fs.f_type == HUGETLBFS_MAGIC);
}

/* Whether one line of /proc/self/maps lets pages be held. */
static bool holdable(const char *modes, const char *path, bool read_only)
{
	if (modes[0] != 'r')
		return false;
	if (read_only)
		return true;
	return modes[1] == 'w' && (modes[3] == 'p' || is_memory_file(path));
}

uint32_t memory_of_user(uint64_t address, size_t size, bool read_only, struct memory *memory)
{
	uint64_t at = address, end = address + size;
	FILE *maps = libc()->fopen("/proc/self/maps", "re");
	char line[512];

	if (!maps)
		return RM_NO_MEMORY;
	while (at < end && fgets(line, sizeof(line), maps)) {
		unsigned long start, stop;
		char modes[5], path[400] = "";

		if (sscanf(line, "%lx-%lx %4s %*s %*s %*s %399[^\n]", &start, &stop, modes, path) <
			    3 ||
		    stop <= at)
			continue;
		if (start > at || !holdable(modes, path, read_only))
			break;
		at = stop;
	}
	fclose(maps);
	if (at < end)
		return RM_INVALID_ADDRESS;
	*memory = (struct memory){
		.kind = MEMORY_USER,
		.read_only = read_only,
		.size = size,
		.hold = (void *)(uintptr_t)address,
	};
	return RM_OK;
}

void memory_release(struct memory *memory)
{
	if (memory->kind == MEMORY_USER)
		return;
	libc()->munmap(memory->hold, memory->size);
}

void *memory_map(const struct memory *memory, void *address, size_t length, int prot, int flags,
		 size_t offset)
{
	void *wanted, *mapped;

	/* Let the kernel choose or check the address, then put the block's pages there. */
	wanted = libc()->mmap(address, length, PROT_NONE,
			      (flags & ~MAP_TYPE) | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
			      0);
	if (wanted == MAP_FAILED)
		return MAP_FAILED;

	/* An old size of 0 makes a second mapping of shared pages and leaves the first alone. */
	mapped = mremap((char *)memory->hold + offset, 0, length, MREMAP_MAYMOVE | MREMAP_FIXED,
			wanted);
	if (mapped == MAP_FAILED || mprotect(mapped, length, prot)) {
		libc()->munmap(wanted, length);
		return MAP_FAILED;
	}
	return mapped;
}
