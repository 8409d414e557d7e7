/* SPDX-License-Identifier: MIT */
/* Blocks that are memory files. */
#define _GNU_SOURCE

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backing.h"
#include "sim.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define NAME "gdrpy-sim-dev"

static bool describe(struct backing *backing)
{
	struct stat status;

	if (fstat(backing->fd, &status))
		return false;
	backing->size = (uint64_t)status.st_size;
	backing->inode = status.st_ino;
	return true;
}

static CUresult memfd_create_block(struct backing *backing, int ordinal, uint64_t size)
{
	char name[32];

	snprintf(name, sizeof(name), NAME "%d", ordinal);
	backing->ordinal = ordinal;
	backing->fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (backing->fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	/* Other users cannot reopen it through /proc with more rights than their descriptor has. */
	if (!fchmod(backing->fd, 0600) && !ftruncate(backing->fd, (off_t)size) &&
	    !fcntl(backing->fd, F_ADD_SEALS, SEALS) && describe(backing))
		return CUDA_SUCCESS;
	close(backing->fd);
	return CUDA_ERROR_OPERATING_SYSTEM;
}

/* The device in the name of a descriptor's memory file, or -1 if it is not such a file. */
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

/* Whether it is open for reading and writing, sealed, and a multiple of the granularity. */
static bool is_block(const struct backing *backing)
{
	int flags = fcntl(backing->fd, F_GETFL);

	return flags >= 0 && (flags & (O_ACCMODE | O_PATH)) == O_RDWR &&
	       fcntl(backing->fd, F_GET_SEALS) == SEALS && backing->size &&
	       backing->size % SIM_GRANULARITY == 0;
}

static CUresult memfd_import(struct backing *backing, int fd)
{
	backing->ordinal = parse_name(fd);
	if (backing->ordinal < 0)
		return CUDA_ERROR_UNKNOWN;
	backing->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (backing->fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (describe(backing) && is_block(backing))
		return CUDA_SUCCESS;
	close(backing->fd);
	return CUDA_ERROR_UNKNOWN;
}

static int memfd_export(const struct backing *backing)
{
	return fcntl(backing->fd, F_DUPFD_CLOEXEC, 0);
}

static int memfd_take(uint32_t pid, uint32_t fd)
{
	char path[48];

	snprintf(path, sizeof(path), "/proc/%u/fd/%u", pid, fd);
	return open(path, O_RDWR | O_CLOEXEC);
}

const struct backing_kind backing_memfd = {
	.create = memfd_create_block,
	.import = memfd_import,
	.export = memfd_export,
	.take = memfd_take,
};
