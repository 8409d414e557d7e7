/* SPDX-License-Identifier: MIT */
/* The end of a submission: its semaphore, or the error notifier of a channel that died. */
#include <errno.h>
#include <time.h>

#include "engine/private.h"

/* Polls of the semaphore between looks at the clock and the notifier. */
#define POLLS 1000
/* Sleep between polls of what takes longer, in ns: the timer's own slack is of that size. */
#define SPIN_NS 200000u
#define SLEEP_NS 50000u
/* A submission has at most a few GiB, and shares its engine with a few others. */
#define PATIENCE_NS 60000000000u

static void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bool is_done(const struct core_channel *channel, uint32_t value)
{
	return (int32_t)(__atomic_load_n(channel->semaphore, __ATOMIC_ACQUIRE) - value) >= 0;
}

static int lose(struct core_channel *channel)
{
	__atomic_store_n(&channel->link->lost, true, __ATOMIC_RELAXED);
	return -1;
}

int core_channel_wait(struct core_channel *channel, uint32_t value, struct core_error *error)
{
	const struct timespec nap = {.tv_nsec = SLEEP_NS};
	uint64_t began = 0, waited;

	for (unsigned int polls = 1; !is_done(channel, value); polls++) {
		relax();
		if (polls % POLLS)
			continue;
		/* What was done before the channel died counts. */
		if (channel->notifier->status && !is_done(channel, value)) {
			core_fail(error, CORE_FAILED_CALL, EIO,
				  "the copy engine's channel died (Xid %u, see dmesg)",
				  channel->notifier->xid);
			return lose(channel);
		}
		if (!began)
			began = now_ns();
		waited = now_ns() - began;
		if (waited > PATIENCE_NS) {
			core_fail(error, CORE_FAILED_CALL, EIO,
				  "the copy engine did not answer for %u seconds",
				  (unsigned int)(PATIENCE_NS / 1000000000u));
			return lose(channel);
		}
		if (waited > SPIN_NS)
			nanosleep(&nap, NULL);
	}
	return 0;
}
