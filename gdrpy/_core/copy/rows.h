/* SPDX-License-Identifier: MIT */
/*
 * Copies between an array with any strides in ordinary memory and rows a pitch apart in a mapping.
 * Copies to the mapping do not fence.
 */
#ifndef GDRPY_COPY_ROWS_H
#define GDRPY_COPY_ROWS_H

#include "copy/copy.h"

#define CORE_MAX_NDIM 64

/*
 * Each read of write-combined memory costs a bus round trip, the time of reading about so many
 * bytes. Gaps of up to this size between rows are read as well.
 */
#define CORE_READ_TRIP 1024

/* An array's rows: the elements that share an index in the first dimension. */
struct core_rows {
	char *first; /* the first row's first element */
	size_t count;
	ptrdiff_t stride; /* from row to row */
	size_t pitch;	  /* the same in the mapping, where rows are contiguous */
	size_t nbytes;	  /* of a row */
	size_t run;	  /* how many of those are contiguous in the array */
	int ndim;	  /* 1 or more: dimensions of the runs in a row, innermost first */
	size_t lengths[CORE_MAX_NDIM];
	ptrdiff_t strides[CORE_MAX_NDIM];
};

/*
 * Describe an array with at least one dimension and one element. Rows without gaps in the mapping
 * are described as one row.
 */
void core_describe_rows(struct core_rows *rows, void *first, size_t itemsize, int ndim,
			const ptrdiff_t *shape, const ptrdiff_t *strides, size_t pitch);

/* A position in a row: `done` bytes of the run at `run` have been moved. */
struct core_place {
	const struct core_rows *rows;
	char *run;
	size_t done;
	size_t index[CORE_MAX_NDIM];
};

/*
 * From the start of a row, gather its next bytes into contiguous memory, or spread bytes from
 * there. Never go beyond the end of the row.
 */
void core_begin_row(struct core_place *place, const struct core_rows *rows, size_t row);
void core_gather(struct core_place *place, void *packed, size_t nbytes);
void core_spread(struct core_place *place, const void *packed, size_t nbytes);

/* How many contiguous bytes take about as long to read from write-combined memory. */
size_t core_rows_read_cost(const struct core_rows *rows);

void core_put_rows(enum core_mapping_kind type, char *mapping, const struct core_rows *rows);
void core_get_rows(enum core_mapping_kind type, const char *mapping, const struct core_rows *rows);

#endif
