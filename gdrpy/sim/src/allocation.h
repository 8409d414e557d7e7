/* SPDX-License-Identifier: MIT */
/* Allocations of cuMemCreate, of this process or imported: physical memory, known by a handle. */
#ifndef GDRPY_SIM_ALLOCATION_H
#define GDRPY_SIM_ALLOCATION_H

#include "block.h"

struct allocation {
	uint64_t handle;
	unsigned int retains;  /* of the handle; at 0 it is no longer good */
	unsigned int mappings; /* which keep the memory, and can bring the handle back */
	struct block *block;
	CUmemAllocationProp properties;
};

/* NULL unless it is a good handle. */
struct allocation *allocation_get(CUmemGenericAllocationHandle handle);

/* A retained allocation. The caller's reference to the block becomes the allocation's. */
struct allocation *allocation_new(struct block *block, const CUmemAllocationProp *properties);

/* To be called when a retain or a mapping has gone. */
void allocation_put(struct allocation *allocation);

#endif
