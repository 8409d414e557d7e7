/* SPDX-License-Identifier: MIT */
/*
 * A clock that tests move on: what is late need not be waited for. The hardware goes by it, and so
 * does the C core, to which it is CLOCK_MONOTONIC. All others see the real one, since the kernel
 * measures their sleeps by it.
 */
#ifndef FAKERM_CLOCK_H
#define FAKERM_CLOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/*
 * Have so many seconds pass: now, or if `at_look` when the core looks at the clock next, as if it
 * had been stopped before. That look takes half a second, in which the hardware does what is due.
 */
void clock_pass(uint32_t seconds, bool at_look);

/* clock_gettime() for a caller in the program. */
int clock_look(clockid_t clock, struct timespec *time, const void *caller);

/* With the ledger's lock held: be without it until so many seconds have passed, or *stop. */
void clock_stall(uint32_t seconds, const bool *stop);

/* The stalls that are not over. */
int clock_stalls(void);

#endif
