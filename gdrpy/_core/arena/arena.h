/* SPDX-License-Identifier: MIT */
/*
 * Blocks of memory carved out of ranges of GPU addresses, which are never touched: what is known of
 * a block is kept apart. First fit; the neighbours of a block that is freed become one piece.
 *
 * Arenas are numbered by the slot that they take. Threads may share one. A forked child has copies,
 * of no use to it.
 */
#ifndef GDRPY_ARENA_H
#define GDRPY_ARENA_H

#include <stddef.h>
#include <stdint.h>

#define GDRPY_ARENA_SLOTS 64
#define GDRPY_ARENA_ALIGNMENT 512

#define GDRPY_ARENA_API __attribute__((visibility("default")))

/*
 * The driver's functions by which a stream is waited for: cuCtxPushCurrent, cuStreamSynchronize,
 * cuCtxPopCurrent. NULL is the default stream of the context that is current, which in the thread
 * that frees a block may be another device's, or none.
 */
struct gdrpy_arena_driver {
	void *context;
	int (*push)(void *context);
	int (*wait)(void *stream);
	int (*pop)(void **context);
};

struct gdrpy_arena_usage {
	uint64_t used; /* bytes, in blocks */
	uint64_t blocks;
	uint64_t largest; /* bytes of the largest free piece */
};

/*
 * A new arena over `nbytes` bytes at `start` on a device; its slot, or a negative errno: -EMFILE
 * where all are taken. `driver`, if not NULL, is what gdrpy_arena_free_N waits by first.
 */
GDRPY_ARENA_API int gdrpy_arena_open(uint64_t start, uint64_t nbytes, int device,
				     const struct gdrpy_arena_driver *driver);

/* 0, or -EBUSY while there are blocks. */
GDRPY_ARENA_API int gdrpy_arena_close(int slot);

/* The address of a new block; 0 where no free piece is large enough. */
GDRPY_ARENA_API uint64_t gdrpy_arena_allocate(int slot, uint64_t nbytes);

/* 0, or -EINVAL where no block begins at the address. */
GDRPY_ARENA_API int gdrpy_arena_free(int slot, uint64_t address);

GDRPY_ARENA_API void gdrpy_arena_usage(int slot, struct gdrpy_arena_usage *usage);

/*
 * For libraries that take an allocator as two C functions: gdrpy_arena_alloc_N and
 * gdrpy_arena_free_N, N a slot's number. The first gives NULL where the arena has no room, or is
 * of another device.
 */
void *gdrpy_arena_allocate_for(int slot, int64_t nbytes, int device);
void gdrpy_arena_free_for(int slot, void *block, void *stream);

#endif
