/* SPDX-License-Identifier: MIT */
/* A physical block of device memory: counted against its device unless another process owns it. */
#ifndef GDRPY_SIM_BLOCK_H
#define GDRPY_SIM_BLOCK_H

#include "backing.h"
#include "sim.h"

struct block {
	struct backing backing;
	struct device *device; /* NULL if not visible to this process; then imported */
	bool imported;
	unsigned int references;
	uint64_t address;	     /* where cuMemAlloc mapped it; 0 for VMM blocks */
	struct block *next;	     /* in its context's list of blocks for small allocations */
	struct block *after, **link; /* in the list of all blocks */
};

/* Each gives the caller a reference. `size` is a multiple of the granularity. */
CUresult block_create(struct device *device, uint64_t size, struct block **block);
CUresult block_import(int fd, struct block **block);

/* The block behind another process's descriptor of this number, or CUDA_ERROR_INVALID_VALUE. */
CUresult block_take(uint32_t pid, uint32_t fd, struct block **block);

/* Maps all of it at a new address, accessible to the program, or removes that mapping. */
CUresult block_map(const struct block *block, uint64_t *address);
void block_unmap(const struct block *block, uint64_t address);

void block_get(struct block *block);
void block_put(struct block *block);

/* Called in a forked child, which does not keep device memory, as with a real driver. */
void blocks_begin_child(void);

#endif
