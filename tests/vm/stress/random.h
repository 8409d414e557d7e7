/* SPDX-License-Identifier: MIT */
/* Numbers that a seed determines. */
#ifndef STRESS_RANDOM_H
#define STRESS_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

struct random {
	uint64_t state;
};

uint64_t random_next(struct random *random);

/* 0 to limit - 1 */
uint64_t below(struct random *random, uint64_t limit);

/* True once in so many times. */
bool once_in(struct random *random, uint64_t times);

#endif
