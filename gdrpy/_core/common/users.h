/* SPDX-License-Identifier: MIT */
/*
 * Who uses a thing that is taken away once. Users of two kinds: calls, which are over in no time,
 * and which close() waits for; and views, which it does not, and refuses. Any thread may call these
 * at any time.
 */
#ifndef GDRPY_USERS_H
#define GDRPY_USERS_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

/* Zero at first. Its lower bits count calls, those above them views; the upper two say how far a
 * close() is. */
typedef uint64_t core_users;

#define CORE_ONE_CALL 1ull
#define CORE_ONE_VIEW (1ull << 31)
#define CORE_ALL_VIEWS (CORE_ONE_VIEW * 0x7fffffff)
#define CORE_CLOSING (1ull << 62)
#define CORE_CLOSED (1ull << 63)

static inline uint64_t core_users_views(const core_users *users)
{
	return (__atomic_load_n(users, __ATOMIC_RELAXED) & CORE_ALL_VIEWS) / CORE_ONE_VIEW;
}

static inline void core_users_let_go(core_users *users, uint64_t one)
{
	__atomic_fetch_sub(users, one, __ATOMIC_RELEASE);
}

/* One more call or view, to be let go of; false if it is closed. */
static inline bool core_users_hold(core_users *users, uint64_t one)
{
	while (__atomic_fetch_add(users, one, __ATOMIC_ACQUIRE) & (CORE_CLOSING | CORE_CLOSED)) {
		core_users_let_go(users, one);
		while (__atomic_load_n(users, __ATOMIC_RELAXED) & CORE_CLOSING)
			sched_yield(); /* what comes of it is known after the calls that run */
		if (__atomic_load_n(users, __ATOMIC_RELAXED) & CORE_CLOSED)
			return false;
	}
	return true;
}

/* A call that turns out to take long is a view as well, even if a close() waits for it. */
static inline void core_users_stay(core_users *users)
{
	__atomic_fetch_add(users, CORE_ONE_VIEW, __ATOMIC_RELAXED);
}

/* Close it: 0, or how many views are in the way; -1 if it was closed before. */
static inline int64_t core_users_close(core_users *users)
{
	uint64_t found;

	while (__atomic_fetch_or(users, CORE_CLOSING, __ATOMIC_RELAXED) & CORE_CLOSING)
		sched_yield(); /* another thread does it */
	for (;;) {
		found = CORE_CLOSING;
		if (__atomic_compare_exchange_n(users, &found, CORE_CLOSED, false, __ATOMIC_ACQUIRE,
						__ATOMIC_RELAXED))
			return 0;
		if (found & (CORE_CLOSED | CORE_ALL_VIEWS))
			break;
		sched_yield();
	}
	__atomic_fetch_and(users, ~CORE_CLOSING, __ATOMIC_RELAXED);
	return found & CORE_CLOSED ? -1 : (int64_t)((found & CORE_ALL_VIEWS) / CORE_ONE_VIEW);
}

#endif
