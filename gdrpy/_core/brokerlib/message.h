/* SPDX-License-Identifier: MIT */
/*
 * The broker's messages: MessagePack maps with strings as keys. The writer makes requests of known
 * fields. The reader takes bytes from anybody, and never reads beyond their end.
 */
#ifndef GDRPY_BROKERLIB_MESSAGE_H
#define GDRPY_BROKERLIB_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Writes a map of up to 15 fields. What does not fit sets `full`. */
struct broker_writer {
	unsigned char *start, *next, *end;
	bool full;
};

void broker_write_begin(struct broker_writer *writer, void *buffer, size_t nbytes);
void broker_write_key(struct broker_writer *writer, const char *key); /* then a value */
void broker_write_nil(struct broker_writer *writer);
void broker_write_flag(struct broker_writer *writer, bool flag);
void broker_write_number(struct broker_writer *writer, int64_t number);
void broker_write_text(struct broker_writer *writer, const char *text);
void broker_write_bytes(struct broker_writer *writer, const void *bytes, size_t nbytes);
void broker_write_list(struct broker_writer *writer, size_t count); /* then its items */

#define BROKER_DEVICE_LIMIT 65536

struct broker_reader {
	const unsigned char *next, *end;
};

enum broker_kind {
	BROKER_NIL,
	BROKER_FLAG,
	BROKER_NUMBER, /* that fits int64_t */
	BROKER_TEXT,
	BROKER_BYTES,
	BROKER_LIST,
	BROKER_MAP,
	BROKER_UNUSED, /* a float, an extension, a larger number */
};

struct broker_value {
	enum broker_kind kind;
	int64_t number;		   /* of a flag or number; of a list or map, its items or pairs */
	struct broker_reader span; /* of a text or bytes; of a list or map, what follows */
};

/* One value; of a list or map, its head. False if the bytes are malformed or end too early. */
bool broker_read(struct broker_reader *reader, struct broker_value *value);

/* One value with all that is in it. */
bool broker_skip(struct broker_reader *reader);

/* How many of the bytes, from the first on, are valid UTF-8 without a zero. */
size_t broker_text_length(const void *bytes, size_t nbytes);

static inline bool broker_is_text(const void *bytes, size_t nbytes)
{
	return broker_text_length(bytes, nbytes) == nbytes;
}

/* A field of a message, and where its value goes in a structure. */
enum broker_type {
	BROKER_TO_NUMBER,  /* 0 to 2^63 - 1, to a uint64_t or uint32_t */
	BROKER_TO_SIZE,	   /* the same, from 1 on */
	BROKER_TO_DEVICE,  /* an ordinal, -1 or "cpu", to an int */
	BROKER_TO_FLAG,	   /* to a bool */
	BROKER_TO_TEXT,	   /* to an array of char; nil is "" */
	BROKER_TO_MESSAGE, /* text of any length, to a struct broker_reader */
	BROKER_TO_BYTES,   /* to a struct broker_reader */
	BROKER_TO_LIST,	   /* its head, to a struct broker_value */
	BROKER_TO_MAP,	   /* to a struct broker_reader, for broker_decode() */
};

struct broker_field {
	const char *name; /* NULL ends a table */
	enum broker_type type;
	bool optional; /* absent, or nil: its place stays as it is */
	size_t offset, nbytes;
};

#define BROKER_FIELD(structure, member, name, type, optional)                                      \
	{name, type, optional, offsetof(structure, member), sizeof(((structure *)0)->member)}

/*
 * Read a map into a structure, by a table; unknown fields are ignored. Return NULL, or the name of
 * a field that is missing or malformed.
 */
const char *broker_decode(struct broker_reader *reader, const struct broker_field *fields,
			  void *structure);

#endif
