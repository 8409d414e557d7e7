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
typedef uint64_t gdr_users;

#define GDR_ONE_CALL 1ull
#define GDR_ONE_VIEW (1ull << 31)
#define GDR_ALL_VIEWS (GDR_ONE_VIEW * 0x7fffffff)
#define GDR_CLOSING (1ull << 62)
#define GDR_CLOSED (1ull << 63)

static inline uint64_t gdr_users_views(const gdr_users *users)
{
	return (__atomic_load_n(users, __ATOMIC_RELAXED) & GDR_ALL_VIEWS) / GDR_ONE_VIEW;
}

static inline void gdr_users_let_go(gdr_users *users, uint64_t one)
{
	__atomic_fetch_sub(users, one, __ATOMIC_RELEASE);
}

/* One more call or view, to be let go of; false if it is closed. */
static inline bool gdr_users_hold(gdr_users *users, uint64_t one)
{
	while (__atomic_fetch_add(users, one, __ATOMIC_ACQUIRE) & (GDR_CLOSING | GDR_CLOSED)) {
		gdr_users_let_go(users, one);
		while (__atomic_load_n(users, __ATOMIC_RELAXED) & GDR_CLOSING)
			sched_yield(); /* what comes of it is known after the calls that run */
		if (__atomic_load_n(users, __ATOMIC_RELAXED) & GDR_CLOSED)
			return false;
	}
	return true;
}

/* A call that turns out to take long is a view as well, even if a close() waits for it. */
static inline void gdr_users_stay(gdr_users *users)
{
	__atomic_fetch_add(users, GDR_ONE_VIEW, __ATOMIC_RELAXED);
}

/* Close it: 0, or how many views are in the way; -1 if it was closed before. */
static inline int64_t gdr_users_close(gdr_users *users)
{
	uint64_t found;

	while (__atomic_fetch_or(users, GDR_CLOSING, __ATOMIC_RELAXED) & GDR_CLOSING)
		sched_yield(); /* another thread does it */
	for (;;) {
		found = GDR_CLOSING;
		if (__atomic_compare_exchange_n(users, &found, GDR_CLOSED, false, __ATOMIC_ACQUIRE,
						__ATOMIC_RELAXED))
			return 0;
		if (found & (GDR_CLOSED | GDR_ALL_VIEWS))
			break;
		sched_yield();
	}
	__atomic_fetch_and(users, ~GDR_CLOSING, __ATOMIC_RELAXED);
	return found & GDR_CLOSED ? -1 : (int64_t)((found & GDR_ALL_VIEWS) / GDR_ONE_VIEW);
}

#endif
