/* SPDX-License-Identifier: MIT */
/*
 * A thread pool for copies that one thread cannot make fast enough. It starts on first use and
 * sleeps between jobs. A forked child starts a new pool.
 */
#ifndef GDRPY_PARALLEL_H
#define GDRPY_PARALLEL_H

#include "copy/copy.h"

/* Maximum parts of a job that run at once. */
#define CORE_THREADS_MAX 16

typedef void (*core_part_fn)(void *context, unsigned int part);

/*
 * Run parts 0 to parts - 1 of a job, and return when all are done. Parts must not wait for each
 * other: if threads are missing or busy, the caller runs several parts, or all.
 */
void core_parallel(unsigned int parts, core_part_fn run, void *context);

/*
 * core_copy_to() and core_copy_from() by up to `threads` threads. The pool's threads fence their
 * stores; the caller fences as after any copy to a mapping.
 */
void core_copy_to_by(unsigned int threads, enum core_mapping_kind type, void *mapping,
		     const void *host, size_t nbytes);
void core_copy_from_by(unsigned int threads, enum core_mapping_kind type, void *host,
		       const void *mapping, size_t nbytes);

#endif
