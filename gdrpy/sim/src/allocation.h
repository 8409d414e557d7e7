/* SPDX-License-Identifier: MIT */
/* Allocations of cuMemCreate, of this process or imported: physical memory with a handle. */
#ifndef GDRPY_SIM_ALLOCATION_H
#define GDRPY_SIM_ALLOCATION_H

#include "block.h"

struct allocation {
	uint64_t handle;
	unsigned int retains;  /* of the handle, which is invalid at 0 */
	unsigned int mappings; /* these keep the memory, and can revive the handle */
	struct block *block;
	CUmemAllocationProp properties;
};

/* NULL if the handle is invalid. */
struct allocation *allocation_get(CUmemGenericAllocationHandle handle);

/* A retained allocation, which takes the caller's reference to the block, even on failure. */
CUresult allocation_new(struct block *block, const CUmemAllocationProp *properties,
			CUmemGenericAllocationHandle *handle);

/* Called after a retain or a mapping was removed. */
void allocation_put(struct allocation *allocation);

/* In share.c: CUDA_SUCCESS, or why this process may not use fabric handles. */
CUresult fabric_check(void);

#endif
