/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE

#include "backing.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpustandin.h"
#include "sim.h"

/* Memory of a real BAR if a kernel module provides it, unless GDRPY_SIM_BAR=0. */
const struct backing_kind *backing_kind(void)
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
	return backing_kind() == &backing_bar;
}

CUresult backing_map(const struct backing *backing, uint64_t address, int protection)
{
	void *start = (void *)(uintptr_t)address;

	if (backing_kind()->announce)
		TRY(backing_kind()->announce(backing, address));
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
	if (backing_kind()->withdraw)
		backing_kind()->withdraw(backing, address);
}

void backing_destroy(struct backing *backing)
{
	close(backing->fd);
}
