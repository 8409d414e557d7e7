/* SPDX-License-Identifier: MIT */
#include "copy/pieces.h"

/* Pieces lie anywhere in memory: the CPU is told of this many ahead, which hides most misses. */
#define AHEAD 8

void gdr_put_pieces(enum gdr_mapping_kind type, char *mapping, const struct gdr_piece *pieces,
		    size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (i + AHEAD < count)
			__builtin_prefetch(pieces[i + AHEAD].data);
		gdr_copy_to(type, mapping + pieces[i].offset, pieces[i].data, pieces[i].nbytes);
	}
}

size_t gdr_first_outside(const struct gdr_records *records, int64_t last)
{
	size_t i;

	for (i = 0; i < records->count; i++)
		if (records->offsets[i] < 0 || records->offsets[i] > last)
			break;
	return i;
}

size_t gdr_put_records(enum gdr_mapping_kind type, char *mapping, const struct gdr_records *records,
		       int64_t last)
{
	const char *record = records->records;
	size_t i;

	for (i = 0; i < records->count; i++, record += records->nbytes) {
		int64_t offset = __atomic_load_n(&records->offsets[i], __ATOMIC_RELAXED);

		if (offset < 0 || offset > last)
			break;
		gdr_copy_to(type, mapping + offset, record, records->nbytes);
	}
	return i;
}
