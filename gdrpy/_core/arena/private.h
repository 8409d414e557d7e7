/* SPDX-License-Identifier: MIT */
#ifndef GDRPY_ARENA_PRIVATE_H
#define GDRPY_ARENA_PRIVATE_H

#include "arena/arena.h"

/* Blocks are sorted by address. Bytes outside of them are free. */
struct arena {
	bool open;
	bool sleeping;
	int device;
	uint64_t unit;
	struct gdrpy_arena_driver driver;
	struct gdrpy_arena_memory memory; /* without functions if the range has memory */
	uint64_t start, end;
	struct gdrpy_arena_block *blocks;
	size_t count, room;
	uint64_t used;
};

/* The open arena of a slot, locked, else NULL. What follows is called with the lock held. */
struct arena *gdrpy_arena_enter(int slot);
void gdrpy_arena_leave(struct arena *arena); /* or NULL */

/* Rounding the start of a free piece up may move it past the end. */
static inline uint64_t arena_size(struct gdrpy_arena_block piece)
{
	return piece.end > piece.start ? piece.end - piece.start : 0;
}

/* Give a block memory of its own. Returns 0 or a CUresult. */
int gdrpy_arena_back(const struct arena *arena, const struct gdrpy_arena_block *block);

#endif
