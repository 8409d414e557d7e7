/* SPDX-License-Identifier: MIT */
/* Waiting for a store by another thread, process or GPU. Times are in ns. */
#ifndef GDRPY_SPIN_H
#define GDRPY_SPIN_H

#include <stdbool.h>

#include "common/wait.h"

/* How many loads of cached memory, or of memory beyond the bus, take a microsecond or two. */
#define CORE_LOOKS_CACHED 64
#define CORE_LOOKS_UNCACHED 1

struct core_spin {
	bool (*look)(void *context);	  /* whether the wait is over; runs without the GIL */
	bool (*may_go_on)(void *context); /* called now and then; false with an exception set */
	void *context;
	int looks;	 /* per reading of the clock, which takes as long as some looks */
	int64_t timeout; /* INT64_MAX is forever; core_spin() leaves what is left of it */
	bool naps;	 /* between looks at what takes long, instead of using a CPU */
};

enum core_spin_end {
	CORE_SPIN_CAME,
	CORE_SPIN_LATE,
	CORE_SPIN_ERROR, /* an exception is set, by a signal handler or may_go_on() */
};

/*
 * Call look() until it returns true: a microsecond or two with the GIL held, then without, so that
 * other Python threads run and signals are handled. look() is called even if the timeout is 0. The
 * first microseconds take nothing from the timeout, as they read no clock.
 */
enum core_spin_end core_spin(struct core_spin *spin);

#endif
