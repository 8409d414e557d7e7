/* SPDX-License-Identifier: MIT */
/* Pauses between two looks while waiting for another thread, process or GPU. Times are in ns. */
#ifndef GDRPY_WAIT_H
#define GDRPY_WAIT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <time.h>

#define CORE_SPIN_NS 2000000
#define CORE_LEAST_NAP_NS 10000
#define CORE_EXACT_NAP_NS 100000 /* shorter naps go without the timer's slack */
#define CORE_LONGEST_NAP_NS 1000000

static inline int64_t core_now_ns(void) /* CLOCK_MONOTONIC */
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* After a failure that may pass, such as a lack of descriptors, the next try is so much later. */
#define CORE_TRY_AGAIN_NS INT64_C(5000000000)
#define CORE_NEVER INT64_MAX

/* Whether a time from core_now_ns() has come; 0 always has. */
static inline bool core_has_come(int64_t time)
{
	return !time || (time != CORE_NEVER && core_now_ns() >= time);
}

static inline void core_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/*
 * Sleep for a small part of the time waited so far, if that is long. The timer's slack makes a
 * sleep end some 50 us late, which is much of a wait of a few ms.
 */
static inline void core_nap(int64_t waited)
{
	int64_t nap = waited / 256;
	int slack = 0;

	if (waited <= CORE_SPIN_NS)
		return;
	if (nap < CORE_LEAST_NAP_NS)
		nap = CORE_LEAST_NAP_NS;
	if (nap > CORE_LONGEST_NAP_NS)
		nap = CORE_LONGEST_NAP_NS;
	if (nap < CORE_EXACT_NAP_NS)
		slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
	if (slack > 1)
		prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
	nanosleep(&(struct timespec){.tv_nsec = nap}, NULL);
	if (slack > 1)
		prctl(PR_SET_TIMERSLACK, slack, 0, 0, 0);
}

#endif
