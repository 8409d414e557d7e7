/* SPDX-License-Identifier: MIT */
/* Many small copies to a mapping, whose bytes and sources lie at the ends of what there is. */
#include <stdlib.h>

#include "check.h"
#include "copy/pieces.h"

#define SLOT 160
#define SLOTS 64
#define ROOM (SLOT * SLOTS)

static const enum core_mapping_kind types[] = {CORE_MAPPING_WC, CORE_MAPPING_CACHED,
					       CORE_MAPPING_DEVICE};

/* On the heap, of exactly this size, so that the sanitizer sees an access beside it. */
static unsigned char *counting_bytes(size_t nbytes, unsigned char first)
{
	unsigned char *bytes = malloc(nbytes ? nbytes : 1);

	CHECK(bytes);
	for (size_t i = 0; i < nbytes; i++)
		bytes[i] = (unsigned char)(first + i);
	return bytes;
}

static void check_pieces(enum core_mapping_kind type, size_t nbytes, size_t shift)
{
	unsigned char *mapping = counting_bytes(ROOM, 0), *expected = counting_bytes(ROOM, 0);
	struct core_piece pieces[SLOTS];

	/* Backwards, and the last one ends where the mapping does. */
	for (size_t i = 0; i < SLOTS; i++) {
		size_t slot = (SLOTS - 1 - i) * SLOT;
		size_t offset = i ? slot + shift % (SLOT - nbytes) : ROOM - nbytes;

		pieces[i] = (struct core_piece){offset, counting_bytes(nbytes, 7 * i), nbytes};
		memcpy(expected + offset, pieces[i].data, nbytes);
	}
	core_put_pieces(type, (char *)mapping, pieces, SLOTS);
	CHECK_MEM_EQ(mapping, expected, ROOM);

	for (size_t i = 0; i < SLOTS; i++)
		free((void *)pieces[i].data);
	free(expected);
	free(mapping);
}

static void every_piece_arrives_and_nothing_else(void)
{
	for (size_t type = 0; type < 3; type++)
		for (size_t nbytes = 0; nbytes < SLOT; nbytes++)
			for (size_t shift = 0; shift < 64; shift += 1 + nbytes % 3)
				check_pieces(types[type], nbytes, shift);
}

static void check_records(enum core_mapping_kind type, size_t nbytes)
{
	unsigned char *mapping = counting_bytes(ROOM, 0), *expected = counting_bytes(ROOM, 0);
	unsigned char *data = counting_bytes(SLOTS * nbytes, 99);
	int64_t offsets[SLOTS], last = ROOM - (int64_t)nbytes;
	struct core_records records = {offsets, (char *)data, nbytes, SLOTS};

	for (size_t i = 0; i < SLOTS; i++) {
		offsets[i] = i ? (int64_t)((SLOTS - 1 - i) * SLOT + i % (SLOT - nbytes)) : last;
		memcpy(expected + offsets[i], data + i * nbytes, nbytes);
	}
	CHECK_EQ(core_first_outside(&records, last), SLOTS);
	CHECK_EQ(core_put_records(type, (char *)mapping, &records, last), SLOTS);
	CHECK_MEM_EQ(mapping, expected, ROOM);

	free(data);
	free(expected);
	free(mapping);
}

static void every_record_arrives_and_nothing_else(void)
{
	for (size_t type = 0; type < 3; type++)
		for (size_t nbytes = 0; nbytes < SLOT; nbytes++)
			check_records(types[type], nbytes);
}

static void the_first_offset_outside_is_found(void)
{
	int64_t offsets[] = {0, 92, 93, -1, INT64_MIN, INT64_MAX};
	struct core_records records = {offsets, NULL, 8, 6};

	CHECK_EQ(core_first_outside(&records, 92), 2);
	CHECK_EQ(core_first_outside(&records, 93), 3);
	offsets[3] = 1;
	CHECK_EQ(core_first_outside(&records, 93), 4);
	offsets[4] = 2;
	CHECK_EQ(core_first_outside(&records, 93), 5);
	CHECK_EQ(core_first_outside(&records, -1), 0);
	records.count = 0;
	CHECK_EQ(core_first_outside(&records, -1), 0);
}

static void an_offset_that_has_gone_outside_ends_the_copies(void)
{
	int64_t offsets[] = {8, 0, 93, 16};
	unsigned char *mapping = counting_bytes(100, 0), *expected = counting_bytes(100, 0);
	unsigned char *data = counting_bytes(32, 200);
	struct core_records records = {offsets, (char *)data, 8, 4};

	memcpy(expected + 8, data, 8);
	memcpy(expected, data + 8, 8);
	CHECK_EQ(core_put_records(CORE_MAPPING_WC, (char *)mapping, &records, 92), 2);
	CHECK_MEM_EQ(mapping, expected, 100);

	free(data);
	free(expected);
	free(mapping);
}

CHECK_MAIN(TEST(every_piece_arrives_and_nothing_else), TEST(every_record_arrives_and_nothing_else),
	   TEST(the_first_offset_outside_is_found),
	   TEST(an_offset_that_has_gone_outside_ends_the_copies))
