/* SPDX-License-Identifier: MIT */
/*
 * What the copy routines share. Every access to the mapping goes through a volatile pointer or an
 * intrinsic that the compiler cannot see through: it would turn a plain loop of stores into a call
 * of memcpy, which may write a byte twice, read ahead, or use unaligned accesses.
 */
#ifndef GDRPY_COPY_PRIVATE_H
#define GDRPY_COPY_PRIVATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "copy/copy.h"

#define CORE_LINE 64

typedef uint8_t __attribute__((may_alias)) core_u8;
typedef uint16_t __attribute__((may_alias)) core_u16;
typedef uint32_t __attribute__((may_alias)) core_u32;
typedef uint64_t __attribute__((may_alias)) core_u64;

/* Only naturally aligned accesses of at most eight bytes: right for every type of memory. */
void core_portable_to_mapping(void *mapping, const void *host, size_t nbytes);
void core_portable_from_mapping(void *host, const void *mapping, size_t nbytes);

/* For the tables. */
bool core_always_supported(void);

/* A copy under way: the next byte on both sides, and how many are left. */
struct core_cursor {
	unsigned char *mapping;
	unsigned char *host;
	size_t left;
};

#define CORE_ADVANCE(cursor, type)                                                                 \
	do {                                                                                       \
		(cursor)->mapping += sizeof(type);                                                 \
		(cursor)->host += sizeof(type);                                                    \
		(cursor)->left -= sizeof(type);                                                    \
	} while (0)

/* Move one value of this type; the mapping's side is aligned to its size. */
#define CORE_PUT(cursor, type)                                                                     \
	do {                                                                                       \
		type value_;                                                                       \
		memcpy(&value_, (cursor)->host, sizeof(type));                                     \
		*(volatile type *)(cursor)->mapping = value_;                                      \
		CORE_ADVANCE(cursor, type);                                                        \
	} while (0)

#define CORE_GET(cursor, type)                                                                     \
	do {                                                                                       \
		type value_ = *(const volatile type *)(cursor)->mapping;                           \
		memcpy((cursor)->host, &value_, sizeof(type));                                     \
		CORE_ADVANCE(cursor, type);                                                        \
	} while (0)

/*
 * Unaligned beginnings and ends, CORE_PUT or CORE_GET as `move`. A head step for every type from
 * the narrowest up leaves the mapping's side aligned for the next wider type, or fewer bytes than
 * that; a tail step for every type from the widest down takes what a loop of the next wider type
 * left.
 */
#define CORE_HEAD(move, cursor, type)                                                              \
	do {                                                                                       \
		if (((uintptr_t)(cursor)->mapping & sizeof(type)) &&                               \
		    (cursor)->left >= sizeof(type))                                                \
			move(cursor, type);                                                        \
	} while (0)

#define CORE_TAIL(move, cursor, type)                                                              \
	do {                                                                                       \
		if ((cursor)->left & sizeof(type))                                                 \
			move(cursor, type);                                                        \
	} while (0)

/*
 * Read by whole aligned lines, as load_line() does it. The partial lines at both ends are loaded
 * whole as well (a line never crosses a page) and their bytes taken last, when every load is under
 * way: each is a round trip over the bus, and they overlap.
 */
static inline __attribute__((always_inline)) void
core_read_lines(void *host, const void *mapping, size_t nbytes,
		void (*load_line)(void *to, const void *line))
{
	unsigned char first[CORE_LINE] __attribute__((aligned(CORE_LINE)));
	unsigned char last[CORE_LINE] __attribute__((aligned(CORE_LINE)));
	const unsigned char *from = mapping;
	unsigned char *to = host;
	size_t skip = (uintptr_t)from % CORE_LINE;
	size_t head = 0, body, tail;

	if (!nbytes)
		return;
	core_load_fence();

	if (skip) {
		head = CORE_LINE - skip < nbytes ? CORE_LINE - skip : nbytes;
		load_line(first, from - skip);
	}
	body = (nbytes - head) / CORE_LINE * CORE_LINE;
	for (size_t at = head; at < head + body; at += CORE_LINE)
		load_line(to + at, from + at);
	tail = nbytes - head - body;
	if (tail)
		load_line(last, from + head + body);

	memcpy(to, first + skip, head);
	memcpy(to + head + body, last, tail);
}

#endif
