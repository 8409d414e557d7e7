/* SPDX-License-Identifier: MIT */
/*
 * The legacy IPC handle of a cuMemAlloc pointer: 64 bytes that name the physical block behind it.
 *
 * Their layout is nowhere documented. It is that of driver 580 (seen on hardware), so before any
 * handle of a device is trusted, scratch memory is looked for through its handle.
 */
#ifndef GDRPY_IPC_H
#define GDRPY_IPC_H

#include <stdint.h>

#include "common/error.h"
#include "cuda/driver.h"
#include "cuda/pointer.h"

/* What a handle says of its allocation. */
struct core_ipc_info {
	uint32_t pid;	       /* the owner */
	uint64_t nbytes;       /* of the allocation */
	uint64_t block_nbytes; /* of the physical block that it is a part of */
	uint64_t block_offset;
	uint32_t client; /* the owner's names for the block */
	uint32_t object;
};

/*
 * What the handle of a pointer of this process says. 0, or -1: CORE_FAILED_UNAVAILABLE where it
 * contradicts what CUDA says.
 */
int core_ipc_parse(const struct core_cuda_ipc *handle, const struct core_pointer *pointer,
		   struct core_ipc_info *info, struct core_error *error);

/* The same of a handle that is made now. CORE_FAILED_HANDLE for memory that has none. */
int core_ipc_find(const struct core_cuda *cuda, const struct core_pointer *pointer,
		  struct core_ipc_info *info, struct core_error *error);

/*
 * Where in the block a range begins that may be more than the allocation. CORE_FAILED_SIZE where it
 * is more than the driver mapped: a handle tells an allocation's own size for that, in 4 KiB pages,
 * where the block is all its own (seen on driver 580), and the block is larger.
 */
int core_ipc_offset(const struct core_ipc_info *info, const struct core_pointer *pointer,
		    const struct core_range *range, uint64_t *offset, struct core_error *error);

/*
 * Whether the block, which is of nbytes as the driver says once it has it, is the one that a handle
 * describes. 0, or -1: CORE_FAILED_UNAVAILABLE.
 */
int core_ipc_compare(const struct core_ipc_info *info, uint64_t nbytes, struct core_error *error);

/*
 * Fill scratch memory of a device by CUDA, small and large, and have it read back through its
 * handles: `read` gives bytes of the allocation that info describes. CORE_FAILED_UNAVAILABLE unless
 * they are the same. Nothing is written through a handle.
 *
 * The scratch memory is kept for the life of the process, also for a check that is made again: to
 * free it would wait for every kernel that runs there.
 */
#define CORE_IPC_SCRATCHES 3

struct core_ipc_scratch {
	uint64_t memory; /* 0: not made yet */
	uint64_t id;	 /* of core_pointer_id() */
};

typedef int (*core_ipc_read)(const struct core_cuda *cuda, const struct core_pointer *pointer,
			     const struct core_ipc_info *info, uint64_t offset, void *bytes,
			     size_t nbytes, struct core_error *error);
int core_ipc_check(const struct core_cuda *cuda, const struct core_pointer *near,
		   struct core_ipc_scratch scratch[CORE_IPC_SCRATCHES], core_ipc_read read,
		   struct core_error *error);

#endif
