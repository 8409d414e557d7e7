/* SPDX-License-Identifier: MIT */
/* The copy engine called from C, timed: what the same copy costs without Python. */
#include "copy.h"

#include <stdint.h>
#include <time.h>

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* Nanoseconds that so many fenced writes take, as Mapping.write() does them. */
uint64_t bench_write(int type, void *mapping, void *host, size_t nbytes, uint64_t calls)
{
	uint64_t start = now();

	for (uint64_t call = 0; call < calls; call++) {
		gdr_copy_to_mapping(type, mapping, host, nbytes);
		gdr_store_fence();
	}
	return now() - start;
}

/* Nanoseconds that so many reads take, as Mapping.readinto() does them. */
uint64_t bench_read(int type, void *mapping, void *host, size_t nbytes, uint64_t calls)
{
	uint64_t start = now();

	for (uint64_t call = 0; call < calls; call++)
		gdr_copy_from_mapping(type, host, mapping, nbytes);
	return now() - start;
}
