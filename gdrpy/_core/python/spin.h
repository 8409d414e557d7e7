/* SPDX-License-Identifier: MIT */
/* Waiting for what another thread, process or GPU stores. Times are in ns. */
#ifndef GDRPY_SPIN_H
#define GDRPY_SPIN_H

#include <stdbool.h>
#include <stdint.h>

/* How many looks at cached memory, or at memory beyond the bus, take a microsecond or two. */
#define CORE_LOOKS_CACHED 64
#define CORE_LOOKS_UNCACHED 1

struct core_spin {
	bool (*look)(void *context);	  /* whether it has come; runs without the GIL */
	bool (*may_go_on)(void *context); /* asked now and then; false with an exception set */
	void *context;
	int looks; /* between two that are told the time, which takes as long as some looks */
	int64_t timeout;
};

enum core_spin_end {
	CORE_SPIN_CAME,
	CORE_SPIN_LATE,
	CORE_SPIN_ERROR, /* an exception is set: a signal's, or may_go_on()'s */
};

/*
 * Look until it comes: a microsecond or two with the GIL held, then without, so that other Python
 * threads run and signals are answered. However short the timeout, it has looked.
 */
enum core_spin_end core_spin(const struct core_spin *spin);

int64_t core_now_ns(void); /* of CLOCK_MONOTONIC */

/* When a timeout that begins now is over, and how long that is still; INT64_MAX is for ever. */
int64_t core_deadline(int64_t timeout);
int64_t core_time_left(int64_t deadline);

#endif
