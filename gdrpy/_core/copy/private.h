/* SPDX-License-Identifier: MIT */
/*
 * Shared by the copy routines. Every access to the mapping uses a volatile pointer or an opaque
 * intrinsic. The compiler would turn a plain loop of stores into memcpy(), which may write a byte
 * twice, read ahead, or use unaligned accesses.
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

/* Only naturally aligned accesses of at most eight bytes: valid for every type of memory. */
void core_portable_to_mapping(void *mapping, const void *host, size_t nbytes);
void core_portable_from_mapping(void *host, const void *mapping, size_t nbytes);

/* For the tables. */
bool core_always_supported(void);

/* A copy in progress: the next byte on both sides, and the bytes left. */
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
 * Copy unaligned heads and tails; `move` is CORE_PUT or CORE_GET. Head steps, from the narrowest
 * type up, align the mapping for the next wider type or leave fewer bytes than that. Tail steps,
 * from the widest type down, copy what a loop of the next wider type left.
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
 * Read whole aligned lines with load_line(). Partial lines at both ends are loaded whole as well (a
 * line never crosses a page). Their bytes are copied last, so that all loads overlap: each is a bus
 * round trip.
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
