/* SPDX-License-Identifier: MIT */
/* Rows of arrays of any strides to and from a mapping, against a copy of element by element. */
#include "arrays.h"
#include "check.h"
#include "copy/rows.h"

#define ARRAYS 1500
#define MOST_BYTES (64 << 10) /* of an array: its rows may be larger than the bounce buffer */
#define MOST_GAP 1500	      /* between rows: some are read over, some are not */

static const enum core_mapping_kind types[] = {CORE_MAPPING_WC, CORE_MAPPING_CACHED,
					       CORE_MAPPING_DEVICE};

static void check_array(enum core_mapping_kind type, bool to_mapping)
{
	struct array array;
	struct core_rows rows;
	size_t pitch, extent, shift = random_below(130);
	char *mapping, *expected;

	random_array(&array, MOST_BYTES);
	pitch = row_bytes(&array) + (random_below(2) ? random_below(MOST_GAP) : 0);
	extent = shift + (size_t)(array.shape[0] - 1) * pitch + row_bytes(&array);
	mapping = random_bytes(extent);
	core_describe_rows(&rows, array.first, array.itemsize, array.ndim, array.shape,
			   array.strides, pitch);

	if (to_mapping) {
		expected = copy_of(mapping, extent);
		for (size_t n = 0; n < array.elements; n++)
			memcpy(place_of(expected + shift, &array, n, pitch), element(&array, n),
			       array.itemsize);
		core_put_rows(type, mapping + shift, &rows);
		CHECK_MEM_EQ(mapping, expected, extent);
	} else {
		expected = copy_of(array.memory, array.memory_bytes);
		for (size_t n = 0; n < array.elements; n++)
			memcpy(expected + (element(&array, n) - array.memory),
			       place_of(mapping + shift, &array, n, pitch), array.itemsize);
		core_get_rows(type, mapping + shift, &rows);
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
	struct core_rows rows;
	char memory[64];

	core_describe_rows(&rows, memory, 2, 2, (ptrdiff_t[]){4, 8}, (ptrdiff_t[]){16, 2}, 16);
	CHECK_EQ(rows.count, 1);
	CHECK_EQ(rows.nbytes, 64);
	CHECK_EQ(rows.run, 64);
}

static void dimensions_that_follow_each_other_are_one(void)
{
	struct core_rows rows;
	char memory[512];

	core_describe_rows(&rows, memory, 1, 4, (ptrdiff_t[]){2, 4, 1, 8},
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
