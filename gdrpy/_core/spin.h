/* SPDX-License-Identifier: MIT */
/* What loops that wait for a word of memory need. Times are in ns of CLOCK_MONOTONIC. */
#ifndef GDRPY_SPIN_H
#define GDRPY_SPIN_H

#include <stdint.h>
#include <time.h>

/* Tell the CPU that this is such a loop. */
static inline void gdr_cpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static inline int64_t gdr_now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* When a timeout that begins now ends; INT64_MAX is never, for both. */
static inline int64_t gdr_deadline(int64_t timeout)
{
	return timeout == INT64_MAX ? INT64_MAX : gdr_now_ns() + timeout;
}

#endif
