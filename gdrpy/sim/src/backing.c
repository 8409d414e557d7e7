/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE

#include "backing.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define NAME "gdrpy-sim-dev"

static CUresult describe(struct backing *backing)
{
	struct stat status;

	if (fstat(backing->fd, &status))
		return CUDA_ERROR_OPERATING_SYSTEM;
	backing->size = (uint64_t)status.st_size;
	backing->inode = status.st_ino;
	return CUDA_SUCCESS;
}

CUresult backing_create(struct backing *backing, int ordinal, uint64_t size)
{
	char name[32];
	CUresult result = CUDA_ERROR_OPERATING_SYSTEM;

	snprintf(name, sizeof(name), NAME "%d", ordinal);
	backing->ordinal = ordinal;
	backing->fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (backing->fd < 0)
		return result;
	if (ftruncate(backing->fd, (off_t)size) || fcntl(backing->fd, F_ADD_SEALS, SEALS))
		goto close_fd;
	result = describe(backing);
	if (result != CUDA_SUCCESS)
		goto close_fd;
	return CUDA_SUCCESS;

close_fd:
	close(backing->fd);
	return result;
}

/* The device that a descriptor's memory file is named for, or -1 when it is no such file. */
static int parse_name(int fd)
{
	char path[48], target[64], expected[64];
	ssize_t length;
	int ordinal;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	length = readlink(path, target, sizeof(target) - 1);
	if (length < 0)
		return -1;
	target[length] = '\0';
	if (sscanf(target, "/memfd:" NAME "%d", &ordinal) != 1)
		return -1;
	snprintf(expected, sizeof(expected), "/memfd:" NAME "%d (deleted)", ordinal);
	return strcmp(target, expected) ? -1 : ordinal;
}

/* Read-write, of a fixed size that is whole, and nothing that only looks like it. */
static bool is_block(const struct backing *backing)
{
	int flags = fcntl(backing->fd, F_GETFL);

	return flags >= 0 && (flags & (O_ACCMODE | O_PATH)) == O_RDWR &&
	       fcntl(backing->fd, F_GET_SEALS) == SEALS && backing->size &&
	       backing->size % SIM_GRANULARITY == 0;
}

CUresult backing_import(struct backing *backing, int fd)
{
	CUresult result = CUDA_ERROR_UNKNOWN;

	backing->ordinal = parse_name(fd);
	if (backing->ordinal < 0)
		return result;
	backing->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (backing->fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (describe(backing) != CUDA_SUCCESS || !is_block(backing))
		goto close_fd;
	if (!device_get(backing->ordinal)) {
		result = CUDA_ERROR_INVALID_DEVICE;
		goto close_fd;
	}
	return CUDA_SUCCESS;

close_fd:
	close(backing->fd);
	return result;
}

int backing_export(const struct backing *backing)
{
	return fcntl(backing->fd, F_DUPFD_CLOEXEC, 0);
}

CUresult backing_map(const struct backing *backing, uint64_t address, int protection)
{
	void *start = (void *)(uintptr_t)address;

	if (mmap(start, backing->size, protection, MAP_SHARED | MAP_FIXED, backing->fd, 0) ==
	    MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	/* A device address means nothing in a forked child. */
	madvise(start, backing->size, MADV_DONTFORK);
	return CUDA_SUCCESS;
}

void backing_destroy(struct backing *backing)
{
	close(backing->fd);
}
