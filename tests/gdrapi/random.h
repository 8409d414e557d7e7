/* SPDX-License-Identifier: MIT */
/* Random numbers for the programs that make random calls. */
#ifndef GDRPY_TESTS_GDRAPI_RANDOM_H
#define GDRPY_TESTS_GDRAPI_RANDOM_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of GPU memory that the calls are about. */
#define MEMORY ((size_t)2 << 20)

/* xorshift64: the same sequence for the same seed, everywhere. */
static inline uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static inline size_t below(uint64_t *state, size_t limit)
{
	return next_random(state) % limit;
}

/* Sizes and offsets as programs have them, and as nobody should. */
static inline size_t odd_number(uint64_t *state)
{
	static const size_t edges[] = {0,	  1,	      4095,	4096,
				       65535,	  65536,      65537,	MEMORY - 1,
				       MEMORY,	  MEMORY + 1, SIZE_MAX, SIZE_MAX - 65535,
				       1ul << 40, 1ul << 63};

	return below(state, 3) ? below(state, MEMORY) : edges[below(state, 14)];
}

#endif
