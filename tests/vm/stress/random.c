/* SPDX-License-Identifier: MIT */
#include "random.h"

/* splitmix64, which any seed suits. */
uint64_t random_next(struct random *random)
{
	uint64_t z = random->state += 0x9E3779B97F4A7C15;

	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
	return z ^ (z >> 31);
}

uint64_t below(struct random *random, uint64_t limit)
{
	return random_next(random) % limit;
}

bool once_in(struct random *random, uint64_t times)
{
	return !below(random, times);
}
