/* SPDX-License-Identifier: MIT */
/* Random arrays of any strides, for tests of what copies their rows. */
#ifndef GDRPY_TESTS_ARRAYS_H
#define GDRPY_TESTS_ARRAYS_H

#include <stdint.h>
#include <stdlib.h>

#include "check.h"

#define ARRAY_MOST_NDIM 4

static uint64_t random_state = 0x9e3779b97f4a7c15;

static inline size_t random_below(size_t limit)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state % limit;
}

/* On the heap, of exactly this size, so that the sanitizer sees an access beside it. */
static inline char *random_bytes(size_t nbytes)
{
	char *bytes = malloc(nbytes);

	CHECK(bytes);
	for (size_t i = 0; i < nbytes; i++)
		bytes[i] = (char)(i % 8 ? (size_t)bytes[i - 1] * 5 + 3 : random_below(256));
	return bytes;
}

static inline char *copy_of(const char *bytes, size_t nbytes)
{
	char *copy = malloc(nbytes);

	CHECK(copy);
	return memcpy(copy, bytes, nbytes);
}

/* Elements of an array that may lie in any order, apart, and backwards. */
struct array {
	char *memory;
	size_t memory_bytes;
	char *first;
	size_t itemsize;
	int ndim;
	ptrdiff_t shape[ARRAY_MOST_NDIM];
	ptrdiff_t strides[ARRAY_MOST_NDIM];
	size_t elements;
};

static inline void random_array(struct array *array, size_t most_bytes)
{
	static const size_t itemsizes[] = {1, 2, 3, 4, 8, 16};
	int order[ARRAY_MOST_NDIM], d;
	ptrdiff_t step;

	*array = (struct array){.itemsize = itemsizes[random_below(6)], .elements = 1};
	array->ndim = 1 + (int)random_below(ARRAY_MOST_NDIM);
	for (d = 0; d < array->ndim; d++) {
		size_t room = most_bytes / array->itemsize / array->elements;
		size_t longest = random_below(2) ? 5 : 2000;

		array->shape[d] = 1 + (ptrdiff_t)random_below(room < longest ? room : longest);
		array->elements *= (size_t)array->shape[d];
		order[d] = d;
	}
	for (d = array->ndim - 1; d > 0; d--) {
		int other = (int)random_below((size_t)d + 1), swapped = order[d];

		order[d] = order[other];
		order[other] = swapped;
	}
	step = (ptrdiff_t)array->itemsize;
	for (d = 0; d < array->ndim; d++) {
		step *= random_below(3) ? 1 : 2;
		array->strides[order[d]] = step;
		step *= array->shape[order[d]];
	}
	array->memory_bytes = (size_t)step;
	array->memory = array->first = random_bytes(array->memory_bytes);
	for (d = 0; d < array->ndim; d++) {
		if (random_below(3))
			continue;
		array->first += (array->shape[d] - 1) * array->strides[d];
		array->strides[d] = -array->strides[d];
	}
}

static inline size_t row_bytes(const struct array *array)
{
	return array->elements / (size_t)array->shape[0] * array->itemsize;
}

/* Where the n-th element of the array lies, in C order. */
static inline char *element(const struct array *array, size_t n)
{
	char *at = array->first;

	for (int d = array->ndim - 1; d >= 0; d--) {
		at += (ptrdiff_t)(n % (size_t)array->shape[d]) * array->strides[d];
		n /= (size_t)array->shape[d];
	}
	return at;
}

/* Where it belongs in the mapping. */
static inline char *place_of(char *mapping, const struct array *array, size_t n, size_t pitch)
{
	size_t in_a_row = array->elements / (size_t)array->shape[0];

	return mapping + n / in_a_row * pitch + n % in_a_row * array->itemsize;
}

#endif
