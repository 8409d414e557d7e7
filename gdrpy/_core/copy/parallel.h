/* SPDX-License-Identifier: MIT */
/*
 * A pool of threads for copies that one thread cannot make fast enough. It starts when it is first
 * asked for, sleeps between jobs, and does not survive a fork: the child starts one of its own.
 */
#ifndef GDRPY_PARALLEL_H
#define GDRPY_PARALLEL_H

#include "copy/copy.h"

/* At most so many parts of a job run at once. */
#define CORE_THREADS_MAX 16

typedef void (*core_part_fn)(void *context, unsigned int part);

/*
 * Run part 0 to parts - 1 of a job, and return when all are done. Parts must not wait for each
 * other: where threads are missing or at another job, the caller runs several of them, or all.
 */
void core_parallel(unsigned int parts, core_part_fn run, void *context);

/*
 * The engine's copies, by up to so many threads. The threads of the pool have fenced what they
 * stored; the caller fences as after any copy to a mapping.
 */
void core_copy_to_by(unsigned int threads, enum core_mapping_kind type, void *mapping,
		     const void *host, size_t nbytes);
void core_copy_from_by(unsigned int threads, enum core_mapping_kind type, void *host,
		       const void *mapping, size_t nbytes);

#endif
