/* SPDX-License-Identifier: MIT */
/*
 * Copies between an array of any strides in ordinary memory and rows in a mapping, a pitch apart.
 * None of them fences.
 */
#ifndef GDRPY_COPY_ROWS_H
#define GDRPY_COPY_ROWS_H

#include "copy/copy.h"

#define CORE_MAX_NDIM 64

/* An array's rows: what has one index in its first dimension. */
struct core_rows {
	char *first; /* the first row's first element */
	size_t count;
	ptrdiff_t stride; /* from row to row */
	size_t pitch;	  /* the same in the mapping, where rows lie in one piece */
	size_t nbytes;	  /* of a row */
	size_t run;	  /* of those, how many lie in one piece in the array */
	int ndim;	  /* 1 or more; of the runs in a row, the innermost first: */
	size_t lengths[CORE_MAX_NDIM];
	ptrdiff_t strides[CORE_MAX_NDIM];
};

/*
 * An array with at least one dimension and one element. Where rows follow each other in the mapping
 * without a gap, all of it is described as one row.
 */
void core_describe_rows(struct core_rows *rows, void *first, size_t itemsize, int ndim,
			const ptrdiff_t *shape, const ptrdiff_t *strides, size_t pitch);

/* A place in a row: `done` bytes of the run at `run` are behind. */
struct core_place {
	const struct core_rows *rows;
	char *run;
	size_t done;
	size_t index[CORE_MAX_NDIM];
};

/*
 * From the start of a row on, gather its next bytes to where they lie in one piece, or spread bytes
 * from there; never beyond the end of the row.
 */
void core_begin_row(struct core_place *place, const struct core_rows *rows, size_t row);
void core_gather(struct core_place *place, void *packed, size_t nbytes);
void core_spread(struct core_place *place, const void *packed, size_t nbytes);

/* How many bytes in one piece take about as long to read from write-combined memory. */
size_t core_rows_read_cost(const struct core_rows *rows);

void core_put_rows(enum core_mapping_kind type, char *mapping, const struct core_rows *rows);
void core_get_rows(enum core_mapping_kind type, const char *mapping, const struct core_rows *rows);

#endif
