/* SPDX-License-Identifier: MIT */
/* Rows of arrays of any strides to and from a mapping, against a copy of element by element. */
#include <stdint.h>
#include <stdlib.h>

#include "check.h"
#include "copy_rows.h"

#define ARRAYS 1500
#define MOST_NDIM 4
#define MOST_BYTES (64 << 10) /* of an array: its rows may be larger than the bounce buffer */
#define MOST_GAP 1500	      /* between rows: some are read over, some are not */

static const enum gdr_mapping_type types[] = {GDR_MAPPING_WC, GDR_MAPPING_CACHED,
					      GDR_MAPPING_DEVICE};

static uint64_t random_state = 0x9e3779b97f4a7c15;

static size_t random_below(size_t limit)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state % limit;
}

/* On the heap, of exactly this size, so that the sanitizer sees an access beside it. */
static char *random_bytes(size_t nbytes)
{
	char *bytes = malloc(nbytes);

	CHECK(bytes);
	for (size_t i = 0; i < nbytes; i++)
		bytes[i] = (char)random_below(256);
	return bytes;
}

static char *copy_of(const char *bytes, size_t nbytes)
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
	ptrdiff_t shape[MOST_NDIM];
	ptrdiff_t strides[MOST_NDIM];
	size_t elements;
};

static void random_array(struct array *array)
{
	static const size_t itemsizes[] = {1, 2, 3, 4, 8, 16};
	int order[MOST_NDIM], d;
	ptrdiff_t step;

	*array = (struct array){.itemsize = itemsizes[random_below(6)], .elements = 1};
	array->ndim = 1 + (int)random_below(MOST_NDIM);
	for (d = 0; d < array->ndim; d++) {
		size_t room = MOST_BYTES / array->itemsize / array->elements;
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

static size_t row_bytes(const struct array *array)
{
	return array->elements / (size_t)array->shape[0] * array->itemsize;
}

/* Where the n-th element of the array lies, in C order. */
static char *element(const struct array *array, size_t n)
{
	char *at = array->first;

	for (int d = array->ndim - 1; d >= 0; d--) {
		at += (ptrdiff_t)(n % (size_t)array->shape[d]) * array->strides[d];
		n /= (size_t)array->shape[d];
	}
	return at;
}

/* Where it belongs in the mapping. */
static char *place_of(char *mapping, const struct array *array, size_t n, size_t pitch)
{
	size_t in_a_row = array->elements / (size_t)array->shape[0];

	return mapping + n / in_a_row * pitch + n % in_a_row * array->itemsize;
}

static void check_array(enum gdr_mapping_type type, bool to_mapping)
{
	struct array array;
	struct gdr_rows rows;
	size_t pitch, extent, shift = random_below(130);
	char *mapping, *expected;

	random_array(&array);
	pitch = row_bytes(&array) + (random_below(2) ? random_below(MOST_GAP) : 0);
	extent = shift + (size_t)(array.shape[0] - 1) * pitch + row_bytes(&array);
	mapping = random_bytes(extent);
	gdr_describe_rows(&rows, array.first, array.itemsize, array.ndim, array.shape,
			  array.strides, pitch);

	if (to_mapping) {
		expected = copy_of(mapping, extent);
		for (size_t n = 0; n < array.elements; n++)
			memcpy(place_of(expected + shift, &array, n, pitch), element(&array, n),
			       array.itemsize);
		gdr_put_rows(type, mapping + shift, &rows);
		CHECK_MEM_EQ(mapping, expected, extent);
	} else {
		expected = copy_of(array.memory, array.memory_bytes);
		for (size_t n = 0; n < array.elements; n++)
			memcpy(expected + (element(&array, n) - array.memory),
			       place_of(mapping + shift, &array, n, pitch), array.itemsize);
		gdr_get_rows(type, mapping + shift, &rows);
		CHECK_MEM_EQ(array.memory, expected, array.memory_bytes);
	}
	free(expected);
	free(mapping);
	free(array.memory);
}

static void every_array_arrives_as_its_rows(void)
{
	for (int i = 0; i < ARRAYS; i++)
		check_array(types[i % 3], true);
}

static void every_array_is_filled_from_its_rows(void)
{
	for (int i = 0; i < ARRAYS; i++)
		check_array(types[i % 3], false);
}

static void rows_without_gaps_are_one(void)
{
	struct gdr_rows rows;
	char memory[64];

	gdr_describe_rows(&rows, memory, 2, 2, (ptrdiff_t[]){4, 8}, (ptrdiff_t[]){16, 2}, 16);
	CHECK_EQ(rows.count, 1);
	CHECK_EQ(rows.nbytes, 64);
	CHECK_EQ(rows.run, 64);
}

static void dimensions_that_follow_each_other_are_one(void)
{
	struct gdr_rows rows;
	char memory[512];

	gdr_describe_rows(&rows, memory, 1, 4, (ptrdiff_t[]){2, 4, 1, 8},
			  (ptrdiff_t[]){256, 32, 7, 4}, 100);
	CHECK_EQ(rows.count, 2);
	CHECK_EQ(rows.nbytes, 32);
	CHECK_EQ(rows.run, 1);
	CHECK_EQ(rows.ndim, 1);
	CHECK_EQ(rows.lengths[0], 32);
	CHECK_EQ(rows.strides[0], 4);
}

CHECK_MAIN(TEST(every_array_arrives_as_its_rows), TEST(every_array_is_filled_from_its_rows),
	   TEST(rows_without_gaps_are_one), TEST(dimensions_that_follow_each_other_are_one))
