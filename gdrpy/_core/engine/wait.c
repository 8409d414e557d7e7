/* SPDX-License-Identifier: MIT */
/* The end of a submission: its semaphore, or the error notifier of a channel that died. */
#include <errno.h>

#include "common/wait.h"
#include "engine/private.h"

/* Polls of the semaphore between looks at the clock and the notifier. */
#define POLLS 1000
/* A submission has at most a few GiB, and shares its engine with a few others. */
#define PATIENCE_NS INT64_C(60000000000)

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
	int64_t began = 0, waited;

	for (unsigned int polls = 1; !is_done(channel, value); polls++) {
		core_relax();
		if (polls % POLLS)
			continue;
		/* Work done before the channel died counts. */
		if (channel->notifier->status && !is_done(channel, value)) {
			core_fail(error, CORE_FAILED_CALL, EIO,
				  "the copy engine's channel died (Xid %u, see dmesg)",
				  channel->notifier->xid);
			return lose(channel);
		}
		if (!began)
			began = core_now_ns();
		waited = core_now_ns() - began;
		if (waited > PATIENCE_NS) {
			core_fail(error, CORE_FAILED_CALL, EIO,
				  "the copy engine did not answer for %u seconds",
				  (unsigned int)(PATIENCE_NS / 1000000000));
			return lose(channel);
		}
		core_nap(waited);
	}
	return 0;
}
