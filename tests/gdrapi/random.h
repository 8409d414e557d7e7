/* SPDX-License-Identifier: MIT */
/* What the programs that make random calls share: random numbers, and how they run. */
#ifndef GDRPY_TESTS_GDRAPI_RANDOM_H
#define GDRPY_TESTS_GDRAPI_RANDOM_H

#include <stddef.h>
#include <stdint.h>

#include "rig.h"

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

/* SEED CALLS: so many calls, after which nothing is left; what is said of them. */
static inline int fuzz(int argc, char **argv, void (*make_calls)(uint64_t seed, int calls),
		       const char *said)
{
	int calls;

	if (argc != 3)
		return 2;
	calls = atoi(argv[2]);
	check_current = argv[1];
	start();
	warm_up();
	usage_before = usage();
	make_calls(strtoull(argv[1], NULL, 0), calls);
	check_nothing_left();
	printf("%d calls %s\n", calls, said);
	return 0;
}

#endif
