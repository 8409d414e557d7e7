/* SPDX-License-Identifier: MIT */
/* Many small copies to a mapping, to places here and there. None of them fences. */
#ifndef GDRPY_COPY_PIECES_H
#define GDRPY_COPY_PIECES_H

#include <stdint.h>

#include "copy/copy.h"

struct core_piece {
	size_t offset;
	const void *data;
	size_t nbytes;
};

/* Each piece to its offset, which the caller has checked. */
void core_put_pieces(enum core_mapping_kind type, char *mapping, const struct core_piece *pieces,
		     size_t count);

/* Records of one size, one behind the other, and where in the mapping each of them goes. */
struct core_records {
	const int64_t *offsets;
	const char *records;
	size_t nbytes; /* of each */
	size_t count;
};

/* The first record whose offset is negative or more than `last`; their count if none is. */
size_t core_first_outside(const struct core_records *records, int64_t last);

/*
 * Each record to its offset. Others may write to the offsets meanwhile: the first that is outside
 * now ends it. Returns how many were copied.
 */
size_t core_put_records(enum core_mapping_kind type, char *mapping,
			const struct core_records *records, int64_t last);

#endif
