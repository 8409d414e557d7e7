/* SPDX-License-Identifier: MIT */
#include "brokerlib/message.h"

#include <string.h>

/* Writing */

static void put(struct broker_writer *writer, const void *bytes, size_t nbytes)
{
	if ((size_t)(writer->end - writer->next) < nbytes) {
		writer->full = true;
		return;
	}
	memcpy(writer->next, bytes, nbytes);
	writer->next += nbytes;
}

/* A byte that tells the kind, and a number of so many bytes, the highest first. */
static void put_head(struct broker_writer *writer, unsigned char kind, uint64_t number, int nbytes)
{
	unsigned char head[9] = {kind};

	for (int i = nbytes; i > 0; i--, number >>= 8)
		head[i] = (unsigned char)number;
	put(writer, head, 1 + (size_t)nbytes);
}

void broker_write_begin(struct broker_writer *writer, void *buffer, size_t nbytes)
{
	writer->start = writer->next = buffer;
	writer->end = writer->start + nbytes;
	writer->full = false;
	put_head(writer, 0x80, 0, 0);
}

void broker_write_key(struct broker_writer *writer, const char *key)
{
	++*writer->start;
	broker_write_text(writer, key);
}

void broker_write_nil(struct broker_writer *writer)
{
	put_head(writer, 0xc0, 0, 0);
}

void broker_write_flag(struct broker_writer *writer, bool flag)
{
	put_head(writer, flag ? 0xc3 : 0xc2, 0, 0);
}

void broker_write_number(struct broker_writer *writer, int64_t number)
{
	if (number >= -32 && number <= 127)
		put_head(writer, (unsigned char)number, 0, 0);
	else
		put_head(writer, 0xd3, (uint64_t)number, 8);
}

void broker_write_text(struct broker_writer *writer, const char *text)
{
	size_t nbytes = strlen(text);

	if (nbytes < 32)
		put_head(writer, 0xa0 | (unsigned char)nbytes, 0, 0);
	else
		put_head(writer, 0xda, nbytes, 2);
	writer->full |= nbytes > UINT16_MAX;
	put(writer, text, nbytes);
}

void broker_write_bytes(struct broker_writer *writer, const void *bytes, size_t nbytes)
{
	writer->full |= nbytes > UINT16_MAX;
	put_head(writer, 0xc5, nbytes, 2);
	if (nbytes)
		put(writer, bytes, nbytes);
}

void broker_write_list(struct broker_writer *writer, size_t count)
{
	writer->full |= count > UINT16_MAX;
	put_head(writer, 0xdc, count, 2);
}

/* Reading */

static bool take(struct broker_reader *reader, uint64_t nbytes, struct broker_reader *taken)
{
	if ((uint64_t)(reader->end - reader->next) < nbytes)
		return false;
	taken->next = reader->next;
	taken->end = reader->next += nbytes;
	return true;
}

static bool take_number(struct broker_reader *reader, int nbytes, uint64_t *number)
{
	struct broker_reader bytes;

	if (!take(reader, (uint64_t)nbytes, &bytes))
		return false;
	for (*number = 0; bytes.next < bytes.end; bytes.next++)
		*number = *number << 8 | *bytes.next;
	return true;
}

/* A text, bytes, or what the client has no use for. */
static bool take_span(struct broker_reader *reader, enum broker_kind kind, uint64_t nbytes,
		      struct broker_value *value)
{
	value->kind = kind;
	return take(reader, nbytes, &value->span);
}

/* Each item takes a byte or more, so that no count is larger than what is left. */
static bool take_items(struct broker_reader *reader, enum broker_kind kind, uint64_t count,
		       struct broker_value *value)
{
	value->kind = kind;
	value->number = (int64_t)count;
	value->span = *reader;
	return count * (kind == BROKER_MAP ? 2 : 1) <= (uint64_t)(reader->end - reader->next);
}

static bool take_integer(struct broker_reader *reader, int nbytes, bool is_signed,
			 struct broker_value *value)
{
	int unused = 64 - 8 * nbytes;
	uint64_t number;

	if (!take_number(reader, nbytes, &number))
		return false;
	value->kind = is_signed || number <= INT64_MAX ? BROKER_NUMBER : BROKER_UNUSED;
	value->number = is_signed ? (int64_t)(number << unused) >> unused : (int64_t)number;
	return true;
}

static bool take_small(enum broker_kind kind, int64_t number, struct broker_value *value)
{
	value->kind = kind;
	value->number = number;
	return true;
}

bool broker_read(struct broker_reader *reader, struct broker_value *value)
{
	uint64_t head, length = 0;
	int kind;

	*value = (struct broker_value){0};
	if (!take_number(reader, 1, &head))
		return false;
	kind = (int)head;
	if (kind < 0x80 || kind >= 0xe0)
		return take_small(BROKER_NUMBER, (int8_t)kind, value);
	if (kind < 0x90)
		return take_items(reader, BROKER_MAP, kind & 15, value);
	if (kind < 0xa0)
		return take_items(reader, BROKER_LIST, kind & 15, value);
	if (kind < 0xc0)
		return take_span(reader, BROKER_TEXT, kind & 31, value);

	/* What has its length in the next 1, 2 or 4 bytes. */
	if ((kind >= 0xc4 && kind <= 0xc9 &&
	     !take_number(reader, 1 << (kind - 0xc4) % 3, &length)) ||
	    (kind >= 0xd9 && kind <= 0xdb && !take_number(reader, 1 << (kind - 0xd9), &length)) ||
	    (kind >= 0xdc && !take_number(reader, kind & 1 ? 4 : 2, &length)))
		return false;
	switch (kind) {
	case 0xc0:
		return take_small(BROKER_NIL, 0, value);
	case 0xc2 ... 0xc3:
		return take_small(BROKER_FLAG, kind & 1, value);
	case 0xc4 ... 0xc6:
		return take_span(reader, BROKER_BYTES, length, value);
	case 0xc7 ... 0xc9: /* an extension, after its type */
		return take_span(reader, BROKER_UNUSED, length + 1, value);
	case 0xca ... 0xcb: /* a float */
		return take_span(reader, BROKER_UNUSED, kind == 0xca ? 4 : 8, value);
	case 0xcc ... 0xcf:
		return take_integer(reader, 1 << (kind & 3), false, value);
	case 0xd0 ... 0xd3:
		return take_integer(reader, 1 << (kind & 3), true, value);
	case 0xd4 ... 0xd8: /* an extension of 1 to 16 bytes, after its type */
		return take_span(reader, BROKER_UNUSED, 1 + (1u << (kind - 0xd4)), value);
	case 0xd9 ... 0xdb:
		return take_span(reader, BROKER_TEXT, length, value);
	case 0xdc ... 0xdd:
		return take_items(reader, BROKER_LIST, length, value);
	case 0xde ... 0xdf:
		return take_items(reader, BROKER_MAP, length, value);
	}
	return false; /* 0xc1, which is never used */
}

bool broker_skip(struct broker_reader *reader)
{
	struct broker_value value;

	for (uint64_t left = 1; left; left--) {
		if (!broker_read(reader, &value))
			return false;
		if (value.kind == BROKER_LIST)
			left += (uint64_t)value.number;
		else if (value.kind == BROKER_MAP)
			left += 2 * (uint64_t)value.number;
	}
	return true;
}

size_t broker_text_length(const void *bytes, size_t nbytes)
{
	const unsigned char *start = bytes, *end = start + nbytes, *next = start;

	while (next < end) {
		size_t before = (size_t)(next - start);
		unsigned char first = *next++, least = 0x80, most = 0xbf;
		int more = first < 0x80 ? 0 : first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;

		if (!first || (first >= 0x80 && first < 0xc2) || first > 0xf4 || end - next < more)
			return before;
		/* The second byte excludes longer forms of a character, halves of pairs, and
		 * numbers beyond Unicode. */
		if (first == 0xe0 || first == 0xf0)
			least = first == 0xe0 ? 0xa0 : 0x90;
		if (first == 0xed || first == 0xf4)
			most = first == 0xed ? 0x9f : 0x8f;
		for (; more; more--, next++, least = 0x80, most = 0xbf)
			if (*next < least || *next > most)
				return before;
	}
	return nbytes;
}

static bool store_number(const struct broker_field *field, int64_t least, int64_t number,
			 void *place)
{
	uint32_t small = (uint32_t)number;

	if (number < least || (field->nbytes == sizeof(small) && number > UINT32_MAX))
		return false;
	if (field->nbytes == sizeof(small))
		memcpy(place, &small, sizeof(small));
	else
		memcpy(place, &number, sizeof(number));
	return true;
}

static bool store_text(const struct broker_field *field, const struct broker_reader *text,
		       char *place)
{
	size_t nbytes = (size_t)(text->end - text->next);

	if (nbytes >= field->nbytes || !broker_is_text(text->next, nbytes))
		return false;
	memset(place, 0, field->nbytes);
	memcpy(place, text->next, nbytes);
	return true;
}

/* `start` is where the value begins. */
static bool store(const struct broker_field *field, const struct broker_reader *start,
		  const struct broker_value *value, void *place)
{
	const struct broker_reader *span = &value->span;

	switch (field->type) {
	case BROKER_TO_NUMBER:
	case BROKER_TO_SIZE:
		return value->kind == BROKER_NUMBER &&
		       store_number(field, field->type == BROKER_TO_SIZE, value->number, place);
	case BROKER_TO_DEVICE:
		*(int *)place = value->kind == BROKER_TEXT ? -1 : (int)value->number;
		if (value->kind == BROKER_TEXT)
			return span->end - span->next == 3 && !memcmp(span->next, "cpu", 3);
		return value->kind == BROKER_NUMBER && value->number >= -1 &&
		       value->number < BROKER_DEVICE_LIMIT;
	case BROKER_TO_FLAG:
		*(bool *)place = value->number;
		return value->kind == BROKER_FLAG;
	case BROKER_TO_TEXT:
		*(char *)place = '\0';
		return value->kind == BROKER_NIL ||
		       (value->kind == BROKER_TEXT && store_text(field, span, place));
	case BROKER_TO_MESSAGE:
		*(struct broker_reader *)place = *span;
		return value->kind == BROKER_TEXT &&
		       broker_is_text(span->next, (size_t)(span->end - span->next));
	case BROKER_TO_BYTES:
		*(struct broker_reader *)place = *span;
		return value->kind == BROKER_BYTES;
	case BROKER_TO_LIST:
		*(struct broker_value *)place = *value;
		return value->kind == BROKER_LIST;
	case BROKER_TO_MAP:
		*(struct broker_reader *)place = *start;
		return value->kind == BROKER_MAP;
	}
	return false;
}

static const struct broker_field *field_of(const struct broker_value *key,
					   const struct broker_field *fields)
{
	size_t nbytes = (size_t)(key->span.end - key->span.next);

	for (; fields->name; fields++)
		if (strlen(fields->name) == nbytes && !memcmp(fields->name, key->span.next, nbytes))
			return fields;
	return NULL;
}

const char *broker_decode(struct broker_reader *reader, const struct broker_field *fields,
			  void *structure)
{
	const struct broker_field *field;
	struct broker_value map, key, value;
	struct broker_reader start;
	uint64_t found = 0;

	if (!broker_read(reader, &map) || map.kind != BROKER_MAP)
		return "map";
	while (map.number--) {
		if (!broker_read(reader, &key) || key.kind != BROKER_TEXT)
			return "key";
		field = field_of(&key, fields);
		start = map.span = *reader;
		if (!broker_skip(reader) || !broker_read(&map.span, &value))
			return field ? field->name : "value";
		if (!field || (field->optional && value.kind == BROKER_NIL))
			continue;
		if (!store(field, &start, &value, (char *)structure + field->offset))
			return field->name;
		found |= 1ull << (field - fields);
	}
	for (field = fields; field->name; field++)
		if (!field->optional && !(found & 1ull << (field - fields)))
			return field->name;
	return NULL;
}
