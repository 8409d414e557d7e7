/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE

#include "backing.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backing_kind.h"
#include "gpustandin.h"
#include "sim.h"

/* Memory of a real BAR if a kernel module provides it, unless GDRPY_SIM_BAR=0. */
static const struct backing_kind *kind(void)
{
	static const struct backing_kind *chosen;
	const char *bar = getenv("GDRPY_SIM_BAR");

	if (!chosen)
		chosen = (!bar || strcmp(bar, "0")) && !access(GPUSTANDIN_NODE, F_OK)
				 ? &backing_bar
				 : &backing_memfd;
	return chosen;
}

int gdrsim_on_bar(void)
{
	return kind() == &backing_bar;
}

CUresult backing_create(struct backing *backing, int ordinal, uint64_t size)
{
	return kind()->create(backing, ordinal, size);
}

CUresult backing_import(struct backing *backing, int fd)
{
	return kind()->import(backing, fd);
}

int backing_export(const struct backing *backing)
{
	return kind()->export(backing);
}

int backing_take(uint32_t pid, uint32_t fd)
{
	return kind()->take(pid, fd);
}

CUresult backing_map(const struct backing *backing, uint64_t address, int protection)
{
	void *start = (void *)(uintptr_t)address;
	CUresult result = kind()->announce(backing, address);

	if (result != CUDA_SUCCESS)
		return result;
	if (mmap(start, backing->size, protection, MAP_SHARED | MAP_FIXED, backing->fd, 0) ==
	    MAP_FAILED) {
		backing_unmap(backing, address);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	/* Device addresses are invalid in a forked child. */
	madvise(start, backing->size, MADV_DONTFORK);
	return CUDA_SUCCESS;
}

void backing_unmap(const struct backing *backing, uint64_t address)
{
	kind()->withdraw(backing, address);
}

void backing_destroy(struct backing *backing)
{
	close(backing->fd);
}
