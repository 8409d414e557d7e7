/* SPDX-License-Identifier: MIT */
/* Many small copies to scattered offsets of a mapping. They do not fence. */
#ifndef GDRPY_COPY_PIECES_H
#define GDRPY_COPY_PIECES_H

#include <stdint.h>

#include "copy/copy.h"

struct core_piece {
	size_t offset;
	void *data;
	size_t nbytes;
};

/* Copy each piece to its offset. The caller has checked the offsets. */
void core_put_pieces(enum core_mapping_kind type, char *mapping, const struct core_piece *pieces,
		     size_t count);

/* Contiguous records of one size, and the offset of each in the mapping. */
struct core_records {
	const int64_t *offsets;
	const char *records;
	size_t nbytes; /* of each */
	size_t count;
};

/* The first record whose offset is negative or above `last`; their count if all are valid. */
size_t core_first_outside(const struct core_records *records, int64_t last);

/*
 * Copy each record to its offset, and return how many were copied. Other threads may change the
 * offsets during the copy; the first that is out of range ends it.
 */
size_t core_put_records(enum core_mapping_kind type, char *mapping,
			const struct core_records *records, int64_t last);

#endif
