/* SPDX-License-Identifier: MIT */
/*
 * Blocks of memory on the BAR of a PCI device, which a kernel module can pin and map like a real
 * GPU's. Each holder and each exported descriptor has a separate view of the block, so that a
 * process's announcements end with that process.
 */
#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backing.h"
#include "gpustandin.h"
#include "sim.h"

static int open_node(void)
{
	return open(GPUSTANDIN_NODE, O_RDWR | O_CLOEXEC);
}

static CUresult bar_create(struct backing *backing, int ordinal, uint64_t size)
{
	struct gpustandin_block block = {.size = size, .ordinal = (uint32_t)ordinal};
	CUresult result;

	backing->fd = open_node();
	if (backing->fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (ioctl(backing->fd, GPUSTANDIN_CREATE, &block)) {
		result = errno == ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_OPERATING_SYSTEM;
		close(backing->fd);
		return result;
	}
	backing->size = size;
	backing->ordinal = ordinal;
	backing->inode = block.id;
	return CUDA_SUCCESS;
}

/* A new view of the block behind another view, or -1. */
static int attach(int fd)
{
	int view = open_node();

	if (view < 0)
		return -1;
	if (ioctl(view, GPUSTANDIN_ATTACH, &fd)) {
		close(view);
		return -1;
	}
	return view;
}

static bool is_view(int fd)
{
	struct stat status, node;
	int flags = fcntl(fd, F_GETFL);

	return flags >= 0 && (flags & (O_ACCMODE | O_PATH)) == O_RDWR && !fstat(fd, &status) &&
	       !stat(GPUSTANDIN_NODE, &node) && S_ISCHR(status.st_mode) &&
	       status.st_rdev == node.st_rdev;
}

static CUresult bar_import(struct backing *backing, int fd)
{
	struct gpustandin_block block;

	if (!is_view(fd) || ioctl(fd, GPUSTANDIN_INFO, &block) || block.size % SIM_GRANULARITY)
		return CUDA_ERROR_UNKNOWN;
	backing->fd = attach(fd);
	if (backing->fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	backing->size = block.size;
	backing->ordinal = (int)block.ordinal;
	backing->inode = block.id;
	return CUDA_SUCCESS;
}

static int bar_export(const struct backing *backing)
{
	return attach(backing->fd);
}

/* Opening the owner's descriptor through /proc would give a file that is not a view. */
static int bar_take(uint32_t pid, uint32_t fd)
{
	int process = (int)syscall(SYS_pidfd_open, pid, 0);
	int taken;

	if (process < 0)
		return -1;
	taken = (int)syscall(SYS_pidfd_getfd, process, fd, 0);
	close(process);
	return taken;
}

static CUresult bar_announce(const struct backing *backing, uint64_t address)
{
	return ioctl(backing->fd, GPUSTANDIN_REGISTER, &address) ? CUDA_ERROR_OUT_OF_MEMORY
								 : CUDA_SUCCESS;
}

static void bar_withdraw(const struct backing *backing, uint64_t address)
{
	if (!ioctl(backing->fd, GPUSTANDIN_UNREGISTER, &address))
		return;
	perror("gdrpy simulated GPU: cannot withdraw device memory");
	abort();
}

const struct backing_kind backing_bar = {
	.create = bar_create,
	.import = bar_import,
	.export = bar_export,
	.take = bar_take,
	.announce = bar_announce,
	.withdraw = bar_withdraw,
};
