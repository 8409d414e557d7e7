/* SPDX-License-Identifier: MIT */
/*
 * Blocks carved out of ranges of GPU addresses. The bookkeeping lies elsewhere. First fit; a freed
 * block merges with its free neighbours.
 *
 * The range has memory, which is never touched; or each block gets memory when it is made, in an
 * arena that can sleep: its blocks then have addresses only.
 *
 * An arena's number is its slot. Threads may share an arena. A forked child cannot use its copies.
 */
#ifndef GDRPY_ARENA_H
#define GDRPY_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GDRPY_ARENA_SLOTS 64
#define GDRPY_ARENA_ALIGNMENT 512

#define GDRPY_ARENA_API __attribute__((visibility("default")))

/*
 * Driver functions that wait for a stream: cuCtxPushCurrent, cuStreamSynchronize, cuCtxPopCurrent.
 * A NULL stream is the default stream of the current context, and the thread that frees a block may
 * have another device's context current, or none.
 */
struct gdrpy_arena_driver {
	void *context;
	int (*push)(void *context);
	int (*wait)(void *stream);
	int (*pop)(void **context);
};

/* Driver functions that give blocks memory and take it back. Each returns a CUresult. */
struct gdrpy_arena_memory {
	uint64_t unit;		/* bytes; addresses and sizes of blocks are multiples of it */
	const void *properties; /* CUmemAllocationProp, of each block's memory */
	const void *access;	/* CUmemAccessDesc, of the arena's device */
	int (*create)(uint64_t *handle, size_t nbytes, const void *properties,
		      unsigned long long flags);
	int (*release)(uint64_t handle);
	int (*map)(uint64_t start, size_t nbytes, size_t offset, uint64_t handle,
		   unsigned long long flags);
	int (*set_access)(uint64_t start, size_t nbytes, const void *access, size_t count);
	int (*unmap)(uint64_t start, size_t nbytes);
	int (*to_host)(void *host, uint64_t start, size_t nbytes);
	int (*from_host)(uint64_t start, const void *host, size_t nbytes);
};

/* `kept` is where host memory has its contents since the last sleep, or GDRPY_ARENA_NOT_KEPT. */
struct gdrpy_arena_block {
	uint64_t start, end, kept;
};

#define GDRPY_ARENA_NOT_KEPT UINT64_MAX

struct gdrpy_arena_usage {
	uint64_t used; /* bytes, in blocks */
	uint64_t blocks;
	uint64_t largest; /* bytes of the largest free piece */
	uint64_t sleeping;
};

/*
 * Open an arena over `nbytes` bytes at `start` on a device. Returns its slot, -EMFILE if all are
 * taken, or -EEXIST if another arena has some of the addresses. gdrpy_arena_free_N waits for its
 * stream with `driver`, if that is not NULL. With `memory` the range is reserved addresses, and
 * each block gets memory of its own.
 */
GDRPY_ARENA_API int gdrpy_arena_open(uint64_t start, uint64_t nbytes, int device,
				     const struct gdrpy_arena_driver *driver,
				     const struct gdrpy_arena_memory *memory);

/* 0, -EBUSY while blocks exist, or -EINVAL if the slot is not open. */
GDRPY_ARENA_API int gdrpy_arena_close(int slot);

/* The address of a new block; 0 without room or memory for it, and while the arena sleeps. */
GDRPY_ARENA_API uint64_t gdrpy_arena_allocate(int slot, uint64_t nbytes);

/* 0, or -EINVAL if no block begins at the address. */
GDRPY_ARENA_API int gdrpy_arena_free(int slot, uint64_t address);

/* Fill in the blocks by address, as many as there is room for. Returns how many these are. */
GDRPY_ARENA_API uint64_t gdrpy_arena_blocks(int slot, struct gdrpy_arena_block *blocks,
					    uint64_t room);

GDRPY_ARENA_API void gdrpy_arena_usage(int slot, struct gdrpy_arena_usage *usage);

/*
 * Take the memory of the blocks back, after copying their contents to `room` bytes at `host` if
 * `keep` says so; else they are dropped. With `unchanged` the copies of the last sleep serve again,
 * which `host` must have, if there is one of every block. Returns 0, or the arena stays awake:
 * -ENOSPC if `room` is too small, -EINVAL if the arena's blocks have no memory of their own or its
 * context is gone, or a CUresult.
 */
GDRPY_ARENA_API int gdrpy_arena_sleep(int slot, bool keep, void *host, uint64_t room,
				      bool unchanged);

/*
 * Give the blocks memory again, with the contents that `host` has of them. Returns 0, or
 * the arena sleeps on: -EINVAL as above, or a CUresult.
 */
GDRPY_ARENA_API int gdrpy_arena_wake(int slot, const void *host);

/*
 * For libraries that take an allocator as two C functions: gdrpy_arena_alloc_N and
 * gdrpy_arena_free_N, where N is the slot. The first returns NULL if the arena has no room or
 * belongs to another device.
 */
void *gdrpy_arena_allocate_for(int slot, int64_t nbytes, int device);
void gdrpy_arena_free_for(int slot, void *block, void *stream);

#endif
