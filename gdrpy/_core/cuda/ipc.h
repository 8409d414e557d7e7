/* SPDX-License-Identifier: MIT */
/*
 * The legacy IPC handle of a cuMemAlloc pointer: 64 bytes that name the physical block behind it.
 *
 * The layout is undocumented. It is that of driver 580, as seen on hardware. Before any handle of a
 * device is trusted, scratch memory is read back through its handle.
 */
#ifndef GDRPY_IPC_H
#define GDRPY_IPC_H

#include <stdint.h>

#include "common/error.h"
#include "cuda/driver.h"
#include "cuda/pointer.h"

/* A handle's description of its allocation. */
struct core_ipc_info {
	uint32_t pid;	       /* the owner */
	uint64_t nbytes;       /* of the allocation */
	uint64_t block_nbytes; /* of the physical block that contains it */
	uint64_t block_offset;
	uint32_t client; /* the owner's handles of the block */
	uint32_t object;
};

/*
 * Read the handle of a pointer of this process. 0, or -1: CORE_FAILED_UNAVAILABLE if it contradicts
 * CUDA.
 */
int core_ipc_parse(const struct core_cuda_ipc *handle, const struct core_pointer *pointer,
		   struct core_ipc_info *info, struct core_error *error);

/* Create a handle and read it. CORE_FAILED_HANDLE for memory without a handle. */
int core_ipc_find(const struct core_cuda *cuda, const struct core_pointer *pointer,
		  struct core_ipc_info *info, struct core_error *error);

/*
 * The offset in the block of a range, which may exceed the allocation. CORE_FAILED_SIZE if it
 * exceeds the driver's mapping. The handle does not tell: if the allocation has a block to itself,
 * it gives the allocation's size in 4 KiB pages (seen on driver 580), and the block is larger.
 */
int core_ipc_offset(const struct core_ipc_info *info, const struct core_pointer *pointer,
		    const struct core_range *range, uint64_t *offset, struct core_error *error);

/*
 * Whether a block of `nbytes`, as the driver reports, is the one that a handle describes. 0, or -1:
 * CORE_FAILED_UNAVAILABLE.
 */
int core_ipc_compare(const struct core_ipc_info *info, uint64_t nbytes, struct core_error *error);

/*
 * Fill small and large scratch memory of a device with CUDA, and read it back through its handles:
 * `read` copies bytes of the allocation that info describes. CORE_FAILED_UNAVAILABLE if they
 * differ. Nothing is written through a handle.
 *
 * The scratch memory is kept for the life of the process, and a repeated check reuses it: freeing
 * it would wait for every kernel that runs on the device.
 */
#define CORE_IPC_SCRATCHES 3

struct core_ipc_scratch {
	uint64_t memory; /* 0: not allocated yet */
	uint64_t id;	 /* from core_pointer_id() */
};

typedef int (*core_ipc_read)(const struct core_cuda *cuda, const struct core_pointer *pointer,
			     const struct core_ipc_info *info, uint64_t offset, void *bytes,
			     size_t nbytes, struct core_error *error);
int core_ipc_check(const struct core_cuda *cuda, const struct core_pointer *near,
		   struct core_ipc_scratch scratch[CORE_IPC_SCRATCHES], core_ipc_read read,
		   struct core_error *error);

#endif
