/* SPDX-License-Identifier: MIT */
#include "copy/pieces.h"

/* Pieces lie anywhere in memory. Prefetching this many ahead hides most cache misses. */
#define AHEAD 8

void core_put_pieces(enum core_mapping_kind type, char *mapping, const struct core_piece *pieces,
		     size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (i + AHEAD < count)
			__builtin_prefetch(pieces[i + AHEAD].data);
		core_copy_to(type, mapping + pieces[i].offset, pieces[i].data, pieces[i].nbytes);
	}
}

size_t core_first_outside(const struct core_records *records, int64_t last)
{
	size_t i;

	for (i = 0; i < records->count; i++)
		if (records->offsets[i] < 0 || records->offsets[i] > last)
			break;
	return i;
}

size_t core_put_records(enum core_mapping_kind type, char *mapping,
			const struct core_records *records, int64_t last)
{
	const char *record = records->records;
	size_t i;

	for (i = 0; i < records->count; i++, record += records->nbytes) {
		int64_t offset = __atomic_load_n(&records->offsets[i], __ATOMIC_RELAXED);

		if (offset < 0 || offset > last)
			break;
		core_copy_to(type, mapping + offset, record, records->nbytes);
	}
	return i;
}
