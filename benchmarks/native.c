/* SPDX-License-Identifier: MIT */
/* The copy engine called from C, timed: what the same copy costs without Python. */
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "copy/parallel.h"

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* Each function below gives the nanoseconds that so many calls take. */

/* As Mapping.write() does them. */
uint64_t bench_write(int type, void *mapping, void *host, size_t nbytes, uint64_t calls)
{
	uint64_t start = now();

	for (uint64_t call = 0; call < calls; call++) {
		core_copy_to(type, mapping, host, nbytes);
		core_store_fence();
	}
	return now() - start;
}

/* As Mapping.readinto() does them. */
uint64_t bench_read(int type, void *mapping, void *host, size_t nbytes, uint64_t calls)
{
	uint64_t start = now();

	for (uint64_t call = 0; call < calls; call++)
		core_copy_from(type, host, mapping, nbytes);
	return now() - start;
}

/* The same by several threads of the engine's pool. */
uint64_t bench_write_by(unsigned int threads, int type, void *mapping, void *host, size_t nbytes,
			uint64_t calls)
{
	uint64_t start = now();

	for (uint64_t call = 0; call < calls; call++) {
		core_copy_to_by(threads, type, mapping, host, nbytes);
		core_store_fence();
	}
	return now() - start;
}

uint64_t bench_read_by(unsigned int threads, int type, void *mapping, void *host, size_t nbytes,
		       uint64_t calls)
{
	uint64_t start = now();

	for (uint64_t call = 0; call < calls; call++)
		core_copy_from_by(threads, type, host, mapping, nbytes);
	return now() - start;
}

/* One word, as Flag.set() stores it. */
uint64_t bench_store(void *mapping, uint32_t value, uint64_t calls)
{
	uint64_t start = now();

	for (uint64_t call = 0; call < calls; call++) {
		core_store_fence();
		*(volatile uint32_t *)mapping = value;
		core_store_fence();
	}
	return now() - start;
}

/*
 * As Flag.set() and Flag.wait(), 1 to `rounds`; the time of each goes to ns[]. How many were
 * answered rightly within `limit` ns.
 */
uint64_t bench_exchange(uint32_t *ping, const uint32_t *reply, uint64_t rounds, uint64_t limit,
			uint64_t *ns)
{
	for (uint64_t round = 1; round <= rounds; round++) {
		uint64_t start = now(), end;
		uint32_t answer;

		core_store_fence();
		*(volatile uint32_t *)ping = (uint32_t)round;
		core_store_fence();
		do {
			answer = *(const volatile uint32_t *)reply;
			end = now();
		} while (answer < round && end - start < limit);
		if (answer != round)
			return round - 1;
		ns[round - 1] = end - start;
	}
	return rounds;
}

/* By one routine of the engine, or by what bench_memcpy() names. */
uint64_t bench_routine_write(core_copy_fn copy, void *mapping, void *host, size_t nbytes,
			     uint64_t calls)
{
	uint64_t start = now();

	for (uint64_t call = 0; call < calls; call++) {
		copy(mapping, host, nbytes);
		core_store_fence();
	}
	return now() - start;
}

uint64_t bench_routine_read(core_copy_fn copy, void *mapping, void *host, size_t nbytes,
			    uint64_t calls)
{
	uint64_t start = now();

	for (uint64_t call = 0; call < calls; call++)
		copy(host, mapping, nbytes);
	return now() - start;
}

static void call_memcpy(void *dst, const void *src, size_t nbytes)
{
	memcpy(dst, src, nbytes);
	__asm__ volatile("" ::"r"(dst) : "memory");
}

core_copy_fn bench_memcpy(void)
{
	return call_memcpy;
}

/* The routine of that number that this CPU has, and its name; NULL behind the last one. */
core_copy_fn bench_routine(int to_mapping, unsigned int number, const char **name)
{
	const struct core_copy_routine *routine =
		to_mapping ? core_routines_to_wc : core_routines_from_wc;

	for (; routine->name; routine++) {
		if (routine->supported() && !number--) {
			*name = routine->name;
			return routine->copy;
		}
	}
	return NULL;
}
