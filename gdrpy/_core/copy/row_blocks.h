/* SPDX-License-Identifier: MIT */
/* An array's rows in blocks that fit staging memory, where they lie one after the other. */
#ifndef GDRPY_COPY_ROW_BLOCKS_H
#define GDRPY_COPY_ROW_BLOCKS_H

#include "copy/rows.h"

#define CORE_PITCH_MAX 0x7fffffff /* CU_DEVICE_ATTRIBUTE_MAX_PITCH of every device */

/* Rows of the same length in host and device memory. */
struct core_row_block {
	char *host;
	size_t host_pitch;
	uint64_t device;
	size_t device_pitch;
	size_t nbytes, count; /* bytes of a row, and rows */
};

/* The rest of an array, from byte `done` of `row` on. */
struct core_row_walk {
	const struct core_rows *rows;
	uint64_t device; /* of the first row */
	size_t chunk;	 /* bytes to move at once */
	size_t row, done;
};

/* Whether a GPU can copy the rows from where they are. */
static inline bool core_rows_are_lines(const struct core_rows *rows)
{
	return rows->run == rows->nbytes &&
	       (rows->count == 1 ||
		(rows->stride >= (ptrdiff_t)rows->nbytes && rows->stride <= CORE_PITCH_MAX &&
		 rows->pitch <= CORE_PITCH_MAX));
}

/* The bytes from the beginning of the first row to the end of the last one, of such rows. */
static inline size_t core_rows_extent(const struct core_rows *rows)
{
	return (rows->count - 1) * (size_t)rows->stride + rows->nbytes;
}

/* Take the next whole rows, or part of a row, with the device address; false at the end. */
bool core_take_rows(struct core_row_walk *walk, struct core_row_block *block);

/* A place in the array, which advances by the blocks that are moved. */
struct core_row_cursor {
	struct core_place place;
	const struct core_rows *rows;
	size_t row, done;
};

/* Copy the array's next bytes to block->host, or from there. */
void core_pack_rows(struct core_row_cursor *cursor, const struct core_row_block *block);
void core_unpack_rows(struct core_row_cursor *cursor, const struct core_row_block *block);

#endif
