/* SPDX-License-Identifier: MIT */
/* The broker's messages: what is written is read again, and hostile bytes do no harm. */
#include "brokerlib/message.h"
#include "check.h"

#include <stdlib.h>

#define ROUNDS 200000
#define SEED 20261127

/* Bytes in memory of their own, so that the sanitizer sees a read beyond them. */
static struct broker_reader copy_of(const void *bytes, size_t nbytes)
{
	unsigned char *copy = malloc(nbytes ? nbytes : 1);

	memcpy(copy, bytes, nbytes);
	return (struct broker_reader){copy, copy + nbytes};
}

static void discard(struct broker_reader copy)
{
	free((void *)copy.next);
}

/* What broker_read() makes of bytes. */
static bool reads(const char *bytes, size_t nbytes, struct broker_value *value)
{
	struct broker_reader copy = copy_of(bytes, nbytes), reader = copy;
	bool done = broker_read(&reader, value);

	discard(copy);
	return done;
}

#define READS(literal, value) reads(literal, sizeof(literal) - 1, value)

static bool skips(const char *bytes, size_t nbytes)
{
	struct broker_reader copy = copy_of(bytes, nbytes), reader = copy;
	bool done = broker_skip(&reader) && reader.next == reader.end;

	discard(copy);
	return done;
}

#define SKIPS(literal) skips(literal, sizeof(literal) - 1)

static void numbers_of_all_widths_are_read(void)
{
	static const struct {
		const char *bytes;
		size_t nbytes;
		int64_t number;
	} rows[] = {
		{"\x00", 1, 0},
		{"\x7f", 1, 127},
		{"\xe0", 1, -32},
		{"\xff", 1, -1},
		{"\xcc\xff", 2, 255},
		{"\xcd\xff\xff", 3, 65535},
		{"\xce\xff\xff\xff\xff", 5, UINT32_MAX},
		{"\xcf\x7f\xff\xff\xff\xff\xff\xff\xff", 9, INT64_MAX},
		{"\xd0\x80", 2, -128},
		{"\xd1\x80\x00", 3, -32768},
		{"\xd2\x80\x00\x00\x00", 5, INT32_MIN},
		{"\xd3\x80\x00\x00\x00\x00\x00\x00\x00", 9, INT64_MIN},
	};
	struct broker_value value;

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		CHECK(reads(rows[i].bytes, rows[i].nbytes, &value));
		CHECK_EQ(value.kind, BROKER_NUMBER);
		CHECK_EQ(value.number, rows[i].number);
		for (size_t nbytes = 0; nbytes < rows[i].nbytes; nbytes++)
			CHECK(!reads(rows[i].bytes, nbytes, &value));
	}
}

static void a_number_beyond_63_bits_is_of_no_use(void)
{
	struct broker_value value;

	CHECK(READS("\xcf\x80\x00\x00\x00\x00\x00\x00\x00", &value));
	CHECK_EQ(value.kind, BROKER_UNUSED);
}

static void what_the_client_does_not_know_is_skipped(void)
{
	CHECK(SKIPS("\xca\x00\x00\x00\x00"));
	CHECK(SKIPS("\xcb\x00\x00\x00\x00\x00\x00\x00\x00"));
	CHECK(SKIPS("\xd4\x01\x02"));
	CHECK(SKIPS("\xd8\x01"
		    "0123456789abcdef"));
	CHECK(SKIPS("\xc7\x02\x01"
		    "ab"));
	CHECK(SKIPS("\x82\xa1k\x93\x01\xc0\xc3\xa1m\x81\x01\x90"));
	CHECK(!SKIPS("\xc1"));
	CHECK(!SKIPS("\x81\xa1k\xc1"));
}

static void lengths_beyond_the_end_are_malformed(void)
{
	static const char *const heads[] = {"\xc4\x05", "\xd9\x05", "\xa5", "\x95", "\x83"};
	struct broker_value value;

	for (size_t i = 0; i < sizeof(heads) / sizeof(*heads); i++) {
		char bytes[8] = {0};
		size_t nbytes = strlen(heads[i]);

		memcpy(bytes, heads[i], nbytes);
		CHECK(!reads(bytes, nbytes + 4, &value));
	}
	CHECK(!READS("\xc6\xff\xff\xff\xff", &value));
	CHECK(!READS("\xc9\xff\xff\xff\xff", &value));
	CHECK(!READS("\xdb\xff\xff\xff\xff", &value));
	CHECK(!READS("\xdd\xff\xff\xff\xff\x00", &value));
	CHECK(!READS("\xdf\xff\xff\xff\xff\x00\x00", &value));
	CHECK(!READS("\xdf\x80\x00\x00\x01\x00\x00", &value));
}

static void deep_nesting_needs_no_stack(void)
{
	size_t depth = 65535;
	char *bytes = malloc(depth + 1);

	memset(bytes, 0x91, depth);
	bytes[depth] = 0;
	CHECK(skips(bytes, depth + 1));
	CHECK(!skips(bytes, depth));
	free(bytes);
}

static void text_is_valid_utf8_without_a_zero(void)
{
	static const char *const good[] = {"",
					   "a",
					   "\xc3\xbc",
					   "\xe2\x82\xac",
					   "\xed\x9f\xbf",
					   "\xf0\x9f\x98\x80",
					   "\xf4\x8f\xbf\xbf"};
	static const char *const bad[] = {"\x80",
					  "\xc0\x80",
					  "\xc1\xbf",
					  "\xc3",
					  "\xe0\x9f\xbf",
					  "\xe2\x82",
					  "\xed\xa0\x80",
					  "\xf0\x8f\xbf\xbf",
					  "\xf4\x90\x80\x80",
					  "\xf5\x80\x80\x80",
					  "\xff",
					  "\xc3\x41"};

	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++)
		CHECK(broker_is_text(good[i], strlen(good[i])));
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		CHECK(!broker_is_text(bad[i], strlen(bad[i])));
	CHECK(!broker_is_text("a\0b", 3));
}

struct sample {
	uint64_t number;
	uint32_t small;
	int device;
	bool flag;
	char text[8];
	struct broker_reader bytes, map;
	struct broker_value list;
	uint64_t later;
};

#define SAMPLE(member, type, optional) BROKER_FIELD(struct sample, member, #member, type, optional)

static const struct broker_field fields[] = {
	SAMPLE(number, BROKER_TO_NUMBER, false), SAMPLE(small, BROKER_TO_SIZE, false),
	SAMPLE(device, BROKER_TO_DEVICE, false), SAMPLE(flag, BROKER_TO_FLAG, false),
	SAMPLE(text, BROKER_TO_TEXT, false),	 SAMPLE(bytes, BROKER_TO_BYTES, false),
	SAMPLE(map, BROKER_TO_MAP, false),	 SAMPLE(list, BROKER_TO_LIST, false),
	SAMPLE(later, BROKER_TO_NUMBER, true),	 {0},
};

/* Every kind of field once, with one that the table does not have. */
static size_t write_sample(unsigned char *buffer, size_t nbytes)
{
	struct broker_writer writer;

	broker_write_begin(&writer, buffer, nbytes);
	broker_write_key(&writer, "number");
	broker_write_number(&writer, INT64_MAX);
	broker_write_key(&writer, "small");
	broker_write_number(&writer, UINT32_MAX);
	broker_write_key(&writer, "unknown");
	broker_write_list(&writer, 2);
	broker_write_nil(&writer);
	broker_write_text(&writer, "a text of more than the 31 bytes of a short one");
	broker_write_key(&writer, "device");
	broker_write_number(&writer, -1);
	broker_write_key(&writer, "flag");
	broker_write_flag(&writer, true);
	broker_write_key(&writer, "text");
	broker_write_text(&writer, "seven b");
	broker_write_key(&writer, "bytes");
	broker_write_bytes(&writer, "\x00\xff", 2);
	broker_write_key(&writer, "map");
	broker_write_bytes(&writer, "", 0);
	writer.next[-3] = 0x80; /* the library writes no maps in maps: an empty one in place */
	writer.next -= 2;
	broker_write_key(&writer, "list");
	broker_write_list(&writer, 1);
	broker_write_number(&writer, 7);
	CHECK(!writer.full);
	return (size_t)(writer.next - writer.start);
}

static void what_is_written_is_read_again(void)
{
	unsigned char buffer[512];
	struct broker_reader reader = {buffer, buffer + write_sample(buffer, sizeof(buffer))};
	struct sample sample = {.later = 5};
	struct broker_value item;

	CHECK(!broker_decode(&reader, fields, &sample));
	CHECK(reader.next == reader.end);
	CHECK_EQ(sample.number, INT64_MAX);
	CHECK_EQ(sample.small, UINT32_MAX);
	CHECK_EQ(sample.device, -1);
	CHECK(sample.flag);
	CHECK_STR_EQ(sample.text, "seven b");
	CHECK_EQ(sample.bytes.end - sample.bytes.next, 2);
	CHECK_EQ(*sample.map.next, 0x80);
	CHECK_EQ(sample.list.number, 1);
	CHECK(broker_read(&sample.list.span, &item));
	CHECK_EQ(item.number, 7);
	CHECK_EQ(sample.later, 5);
}

static void what_does_not_fit_is_noticed_and_not_written(void)
{
	unsigned char buffer[64];
	struct broker_writer writer;

	for (size_t nbytes = 1; nbytes < 40; nbytes++) {
		memset(buffer, 0xa5, sizeof(buffer));
		broker_write_begin(&writer, buffer, nbytes);
		broker_write_key(&writer, "key");
		broker_write_text(&writer, "a text of more bytes than there are");
		CHECK(writer.full);
		CHECK_EQ(buffer[nbytes], 0xa5);
	}
}

static void wrong_of(const char *bytes, size_t nbytes, const char *expected)
{
	static const struct broker_field two[] = {
		SAMPLE(small, BROKER_TO_SIZE, false),
		SAMPLE(text, BROKER_TO_TEXT, false),
		{0},
	};
	struct broker_reader copy = copy_of(bytes, nbytes), reader = copy;
	struct sample sample = {0};
	const char *wrong = broker_decode(&reader, two, &sample);

	discard(copy);
	CHECK_STR_EQ(wrong ? wrong : "nothing", expected);
}

#define WRONG(literal, expected) wrong_of(literal, sizeof(literal) - 1, expected)

static void a_field_that_is_wrong_or_missing_is_named(void)
{
	WRONG("\x82\xa5small\x01\xa4text\xa1x", "nothing");
	WRONG("\x82\xa5small\x01\xa4text\xc0", "nothing");
	WRONG("\x81\xa5small\x01", "text");
	WRONG("\x81\xa4text\xa1x", "small");
	WRONG("\x82\xa5small\x00\xa4text\xa1x", "small");
	WRONG("\x82\xa5small\xff\xa4text\xa1x", "small");
	WRONG("\x82\xa5small\xcf\0\0\0\x01\0\0\0\0\xa4text\xa1x", "small");
	WRONG("\x82\xa5small\x01\xa4text\xa8"
	      "12345678",
	      "text");
	WRONG("\x82\xa5small\x01\xa4text\xa1\xff", "text");
	WRONG("\x82\xa5small\x01\xa4text\xc4\x01x", "text");
	WRONG("\x82\xa5small\x01\xa4text", "text");
	WRONG("\x82\xa5small\x01\xa1?\xc1", "value");
	WRONG("\x81\x01\x02", "key");
	WRONG("\x90", "map");
	WRONG("", "map");
}

static uint32_t next_random(uint32_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 17;
	*state ^= *state << 5;
	return *state;
}

/* A message with some bytes changed or cut off; what is told of it lies within its bytes. */
static void decode_mutated(const unsigned char *message, size_t nbytes, uint32_t *state)
{
	struct broker_reader copy =
		copy_of(message, nbytes - next_random(state) % 2 * (next_random(state) % nbytes));
	struct broker_reader reader = copy;
	size_t left = (size_t)(copy.end - copy.next);
	struct sample sample = {0};

	for (uint32_t changes = next_random(state) % 5; changes && left; changes--)
		((unsigned char *)copy.next)[next_random(state) % left] =
			(unsigned char)next_random(state);
	if (!broker_decode(&reader, fields, &sample)) {
		CHECK(sample.bytes.next >= copy.next && sample.bytes.end <= copy.end);
		CHECK(sample.map.next >= copy.next && sample.map.next < copy.end);
		CHECK(strlen(sample.text) < sizeof(sample.text));
		while (sample.list.number-- && broker_skip(&sample.list.span))
			;
		CHECK(sample.list.span.next <= copy.end);
	}
	CHECK(reader.next <= copy.end);
	discard(copy);
}

static void random_changes_never_lead_beyond_the_bytes(void)
{
	unsigned char buffer[512];
	size_t nbytes = write_sample(buffer, sizeof(buffer));
	uint32_t state = SEED;

	for (int round = 0; round < ROUNDS; round++)
		decode_mutated(buffer, nbytes, &state);
}

CHECK_MAIN(TEST(numbers_of_all_widths_are_read), TEST(a_number_beyond_63_bits_is_of_no_use),
	   TEST(what_the_client_does_not_know_is_skipped),
	   TEST(lengths_beyond_the_end_are_malformed), TEST(deep_nesting_needs_no_stack),
	   TEST(text_is_valid_utf8_without_a_zero), TEST(what_is_written_is_read_again),
	   TEST(what_does_not_fit_is_noticed_and_not_written),
	   TEST(a_field_that_is_wrong_or_missing_is_named),
	   TEST(random_changes_never_lead_beyond_the_bytes))
