/* SPDX-License-Identifier: MIT */
#include "copy/row_blocks.h"

bool core_take_rows(struct core_row_walk *walk, struct core_row_block *block)
{
	const struct core_rows *rows = walk->rows;
	size_t left = rows->count - walk->row;

	if (!left)
		return false;
	*block = (struct core_row_block){
		.device = walk->device + walk->row * rows->pitch + walk->done,
		.device_pitch = rows->pitch,
		.host_pitch = rows->nbytes,
		.nbytes = rows->nbytes,
		.count = 1,
	};
	if (rows->nbytes > walk->chunk) {
		block->nbytes = rows->nbytes - walk->done;
		if (block->nbytes > walk->chunk)
			block->nbytes = walk->chunk;
		walk->done += block->nbytes;
		if (walk->done < rows->nbytes)
			return true;
		walk->done = 0;
	} else if (rows->pitch <= CORE_PITCH_MAX) {
		block->count = walk->chunk / rows->nbytes;
		if (block->count > left)
			block->count = left;
	}
	walk->row += block->count;
	return true;
}

static void move(struct core_row_cursor *cursor, const struct core_row_block *block,
		 void (*move_bytes)(struct core_place *place, void *packed, size_t nbytes))
{
	char *packed = block->host;

	for (size_t i = 0; i < block->count; i++, packed += block->nbytes) {
		if (!cursor->done)
			core_begin_row(&cursor->place, cursor->rows, cursor->row);
		move_bytes(&cursor->place, packed, block->nbytes);
		cursor->done += block->nbytes;
		if (cursor->done == cursor->rows->nbytes) {
			cursor->done = 0;
			cursor->row++;
		}
	}
}

static void spread(struct core_place *place, void *packed, size_t nbytes)
{
	core_spread(place, packed, nbytes);
}

void core_pack_rows(struct core_row_cursor *cursor, const struct core_row_block *block)
{
	move(cursor, block, core_gather);
}

void core_unpack_rows(struct core_row_cursor *cursor, const struct core_row_block *block)
{
	move(cursor, block, spread);
}
