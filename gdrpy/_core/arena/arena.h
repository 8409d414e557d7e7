/* SPDX-License-Identifier: MIT */
/*
 * Blocks carved out of ranges of GPU addresses. The GPU memory is never touched; the bookkeeping
 * lies elsewhere. First fit; a freed block merges with its free neighbours.
 *
 * An arena's number is its slot. Threads may share an arena. A forked child cannot use its copies.
 */
#ifndef GDRPY_ARENA_H
#define GDRPY_ARENA_H

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

struct gdrpy_arena_block {
	uint64_t start, end;
};

struct gdrpy_arena_usage {
	uint64_t used; /* bytes, in blocks */
	uint64_t blocks;
	uint64_t largest; /* bytes of the largest free piece */
};

/*
 * Open an arena over `nbytes` bytes at `start` on a device. Returns its slot, or -EMFILE if all are
 * taken. gdrpy_arena_free_N waits for its stream with `driver`, if that is not NULL.
 */
GDRPY_ARENA_API int gdrpy_arena_open(uint64_t start, uint64_t nbytes, int device,
				     const struct gdrpy_arena_driver *driver);

/* 0, -EBUSY while blocks exist, or -EINVAL if the slot is not open. */
GDRPY_ARENA_API int gdrpy_arena_close(int slot);

/* The address of a new block, or 0 if no free piece is large enough. */
GDRPY_ARENA_API uint64_t gdrpy_arena_allocate(int slot, uint64_t nbytes);

/* 0, or -EINVAL if no block begins at the address. */
GDRPY_ARENA_API int gdrpy_arena_free(int slot, uint64_t address);

/* Fill in the blocks by address, as many as there is room for. Returns how many these are. */
GDRPY_ARENA_API uint64_t gdrpy_arena_blocks(int slot, struct gdrpy_arena_block *blocks,
					    uint64_t room);

GDRPY_ARENA_API void gdrpy_arena_usage(int slot, struct gdrpy_arena_usage *usage);

/*
 * For libraries that take an allocator as two C functions: gdrpy_arena_alloc_N and
 * gdrpy_arena_free_N, where N is the slot. The first returns NULL if the arena has no room or
 * belongs to another device.
 */
void *gdrpy_arena_allocate_for(int slot, int64_t nbytes, int device);
void gdrpy_arena_free_for(int slot, void *block, void *stream);

#endif
