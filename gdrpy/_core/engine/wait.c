/* SPDX-License-Identifier: MIT */
/* The end of a submission: its semaphore, or the error notifier of a channel that died. */
#include <errno.h>

#include "common/wait.h"
#include "engine/private.h"

/* Polls of the semaphore between looks at the clock and the notifier, before the first nap. */
#define POLLS 1000
/* A submission has at most a few GiB, and shares its engine with a few others. */
#define PATIENCE_NS INT64_C(60000000000)

static bool is_done(const struct core_channel *channel, uint32_t value)
{
	return (int32_t)(__atomic_load_n(channel->semaphore, __ATOMIC_ACQUIRE) - value) >= 0;
}

/* Threads that lose the link at the same time have one reason. */
static int lose(struct core_link *link, const struct core_error *error)
{
	pthread_mutex_lock(&link->lock);
	if (!link->lost) {
		link->loss = *error;
		__atomic_store_n(&link->lost, true, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&link->lock);
	return -1;
}

bool core_link_is_lost(const struct core_link *link, struct core_error *error)
{
	if (!__atomic_load_n(&link->lost, __ATOMIC_ACQUIRE))
		return false;
	*error = link->loss;
	return true;
}

/* Whether the channel will do nothing more, as far as can be told after such a wait. */
static bool is_over(struct core_channel *channel, int64_t waited, struct core_error *error)
{
	if (channel->notifier->status)
		core_fail(error, CORE_FAILED_CALL, EIO,
			  "the copy engine's channel died (Xid %u, see dmesg)",
			  channel->notifier->xid);
	else if (waited > PATIENCE_NS)
		core_fail(error, CORE_FAILED_CALL, EIO,
			  "the copy engine did not answer for %u seconds",
			  (unsigned int)(PATIENCE_NS / 1000000000));
	else
		return core_link_is_lost(channel->link, error);
	return true;
}

/* The least and the longest sleep before another look, and the time after which no interrupt comes.
 */
#define LEAST_SLEEP_MS 1
#define LONGEST_SLEEP_MS 100
#define LATE_MS 10

/* Sleep until the interrupt, or for a part of the time waited so far: it may be another's, or lost.
 */
static void sleep_on(struct core_channel *channel, uint32_t value, const struct core_event *event,
		     int64_t waited)
{
	int64_t milliseconds = waited / 8 / 1000000;

	if (milliseconds < LEAST_SLEEP_MS)
		milliseconds = LEAST_SLEEP_MS;
	if (milliseconds > LONGEST_SLEEP_MS)
		milliseconds = LONGEST_SLEEP_MS;
	if (!core_event_sleep(channel->link, event, (int)milliseconds) && is_done(channel, value) &&
	    !core_event_sleep(channel->link, event, LATE_MS))
		__atomic_store_n(&channel->link->deaf, true, __ATOMIC_RELAXED);
}

static int await(struct core_channel *channel, uint32_t value, const struct core_event *event,
		 struct core_error *error)
{
	int64_t began = 0, waited = 0;

	for (unsigned int polls = 1; !is_done(channel, value); polls++) {
		core_relax();
		if (!event && polls % POLLS && waited <= CORE_SPIN_NS)
			continue;
		if (!began)
			began = core_now_ns();
		waited = core_now_ns() - began;
		/* Work done before the channel died counts, or while this process was stopped. */
		if (is_over(channel, waited, error) && !is_done(channel, value))
			return lose(channel->link, error);
		if (event && !__atomic_load_n(&channel->link->deaf, __ATOMIC_RELAXED))
			sleep_on(channel, value, event, waited);
		else
			core_nap(waited);
	}
	return 0;
}

int core_channel_wait(struct core_channel *channel, uint32_t value, struct core_error *error)
{
	return await(channel, value, NULL, error);
}

int core_channel_sleep(struct core_channel *channel, uint32_t value, struct core_error *error)
{
	struct core_event *event = core_event_take(channel->link);
	int ret = await(channel, value, event, error);

	if (event)
		core_event_give_back(channel->link, event);
	return ret;
}
