/* SPDX-License-Identifier: MIT */
#include "copy/rows.h"

#include <stdint.h>
#include <string.h>

#define LINE 64
#define BOUNCE_BYTES 8192

void core_describe_rows(struct core_rows *rows, void *first, size_t itemsize, int ndim,
			const ptrdiff_t *shape, const ptrdiff_t *strides, size_t pitch)
{
	size_t nbytes = itemsize;
	int n = 0, d;

	for (d = 1; d < ndim; d++)
		nbytes *= (size_t)shape[d];
	*rows = (struct core_rows){
		.first = first,
		.count = pitch == nbytes ? 1 : (size_t)shape[0],
		.stride = strides[0],
		.pitch = pitch,
		.nbytes = pitch == nbytes ? nbytes * (size_t)shape[0] : nbytes,
		.run = itemsize,
	};
	for (d = ndim - 1; d >= (pitch == nbytes ? 0 : 1); d--) {
		size_t length = (size_t)shape[d];

		if (length == 1)
			continue;
		if (n == 0 && strides[d] == (ptrdiff_t)rows->run) {
			rows->run *= length;
		} else if (n &&
			   strides[d] == rows->strides[n - 1] * (ptrdiff_t)rows->lengths[n - 1]) {
			rows->lengths[n - 1] *= length;
		} else {
			rows->lengths[n] = length;
			rows->strides[n++] = strides[d];
		}
	}
	if (!n)
		rows->lengths[n++] = 1;
	rows->ndim = n;
}

static char *row_at(const struct core_rows *rows, size_t row)
{
	return rows->first + (ptrdiff_t)row * rows->stride;
}

void core_begin_row(struct core_place *place, const struct core_rows *rows, size_t row)
{
	place->rows = rows;
	place->run = row_at(rows, row);
	place->done = 0;
	memset(place->index, 0, (size_t)rows->ndim * sizeof(place->index[0]));
}

/* Advance by `count` runs, at most to the end of the innermost dimension. */
static void pass_runs(struct core_place *place, size_t count)
{
	const struct core_rows *rows = place->rows;

	place->done = 0;
	place->index[0] += count;
	place->run += (ptrdiff_t)count * rows->strides[0];
	for (int d = 0; place->index[d] == rows->lengths[d] && d + 1 < rows->ndim; d++) {
		place->run += rows->strides[d + 1] - (ptrdiff_t)rows->lengths[d] * rows->strides[d];
		place->index[d] = 0;
		place->index[d + 1]++;
	}
}

enum movement {
	GATHER,
	SPREAD
};

/* Move runs a stride apart to or from contiguous memory. Fast if nbytes is a constant. */
static inline __attribute__((always_inline)) void move_each(enum movement movement, char *packed,
							    char *at, ptrdiff_t stride,
							    size_t nbytes, size_t count)
{
#pragma GCC unroll 8
	for (; count; count--, packed += nbytes, at += stride) {
		if (movement == GATHER)
			memcpy(packed, at, nbytes);
		else
			memcpy(at, packed, nbytes);
	}
}

static inline __attribute__((always_inline)) void move_runs(enum movement movement, char *packed,
							    char *at, ptrdiff_t stride,
							    size_t nbytes, size_t count)
{
	switch (nbytes) {
	case 1:
		move_each(movement, packed, at, stride, 1, count);
		break;
	case 2:
		move_each(movement, packed, at, stride, 2, count);
		break;
	case 4:
		move_each(movement, packed, at, stride, 4, count);
		break;
	case 8:
		move_each(movement, packed, at, stride, 8, count);
		break;
	default:
		move_each(movement, packed, at, stride, nbytes, count);
	}
}

/* Move the row's next bytes to (GATHER) or from (SPREAD) contiguous memory. */
static inline __attribute__((always_inline)) void
move(enum movement movement, struct core_place *place, char *packed, size_t nbytes)
{
	const struct core_rows *rows = place->rows;

	while (nbytes) {
		size_t in_line = rows->lengths[0] - place->index[0];
		size_t runs = nbytes / rows->run < in_line ? nbytes / rows->run : in_line;
		size_t part = runs * rows->run;

		if (!place->done && runs) {
			move_runs(movement, packed, place->run, rows->strides[0], rows->run, runs);
			pass_runs(place, runs);
		} else {
			part = rows->run - place->done < nbytes ? rows->run - place->done : nbytes;
			if (movement == GATHER)
				memcpy(packed, place->run + place->done, part);
			else
				memcpy(place->run + place->done, packed, part);
			place->done += part;
			if (place->done == rows->run)
				pass_runs(place, 1);
		}
		packed += part;
		nbytes -= part;
	}
}

void core_gather(struct core_place *place, void *packed, size_t nbytes)
{
	move(GATHER, place, packed, nbytes);
}

void core_spread(struct core_place *place, const void *packed, size_t nbytes)
{
	move(SPREAD, place, (char *)packed, nbytes);
}

/* How many of a row's remaining bytes to move, so that the next part starts on a line. */
static size_t part_of(const char *mapping, size_t left)
{
	size_t room = BOUNCE_BYTES - (uintptr_t)mapping % LINE;

	return left < room ? left : room;
}

/* Move a row to (GATHER) or from (SPREAD) the mapping. */
static inline __attribute__((always_inline)) void move_row(enum movement movement,
							   enum core_mapping_kind type,
							   char *mapping,
							   const struct core_rows *rows, size_t row)
{
	bool whole = rows->run == rows->nbytes;
	char bounce[BOUNCE_BYTES];
	struct core_place place;
	size_t done, part;

	if (whole && movement == GATHER)
		core_copy_to(type, mapping, row_at(rows, row), rows->nbytes);
	else if (whole)
		core_copy_from(type, row_at(rows, row), mapping, rows->nbytes);
	if (whole)
		return;
	core_begin_row(&place, rows, row);
	for (done = 0; done < rows->nbytes; done += part) {
		part = part_of(mapping + done, rows->nbytes - done);
		if (movement == GATHER) {
			core_gather(&place, bounce, part);
			core_copy_to(type, mapping + done, bounce, part);
		} else {
			core_copy_from(type, bounce, mapping + done, part);
			core_spread(&place, bounce, part);
		}
	}
}

void core_put_rows(enum core_mapping_kind type, char *mapping, const struct core_rows *rows)
{
	for (size_t row = 0; row < rows->count; row++, mapping += rows->pitch)
		move_row(GATHER, type, mapping, rows, row);
}

/* Read adjacent rows, and the gaps between them, at once. */
static void get_rows_at_once(const char *mapping, const struct core_rows *rows, size_t row,
			     size_t count)
{
	char bounce[BOUNCE_BYTES], *from = bounce;
	struct core_place place;

	core_copy_from(CORE_MAPPING_WC, bounce, mapping, (count - 1) * rows->pitch + rows->nbytes);
	for (; count; count--, row++, from += rows->pitch) {
		core_begin_row(&place, rows, row);
		core_spread(&place, from, rows->nbytes);
	}
}

size_t core_rows_read_cost(const struct core_rows *rows)
{
	size_t gap = rows->pitch - rows->nbytes;

	return rows->count * (rows->nbytes + (gap < CORE_READ_TRIP ? gap : CORE_READ_TRIP));
}

/* How many rows one read covers. */
static size_t rows_at_once(enum core_mapping_kind type, const struct core_rows *rows)
{
	if (type != CORE_MAPPING_WC || rows->pitch - rows->nbytes > CORE_READ_TRIP ||
	    rows->nbytes > BOUNCE_BYTES)
		return 1;
	return (BOUNCE_BYTES - rows->nbytes) / rows->pitch + 1;
}

void core_get_rows(enum core_mapping_kind type, const char *mapping, const struct core_rows *rows)
{
	size_t most = rows_at_once(type, rows), count;

	for (size_t row = 0; row < rows->count; row += count, mapping += count * rows->pitch) {
		count = rows->count - row < most ? rows->count - row : most;
		if (count == 1)
			move_row(SPREAD, type, (char *)mapping, rows, row);
		else
			get_rows_at_once(mapping, rows, row, count);
	}
}
