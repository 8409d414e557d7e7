/* SPDX-License-Identifier: MIT */
/*
 * Counts the users of an object that is closed once. close() waits for calls, which are short, and
 * refuses while views exist; retire() closes it under them, and the last of them releases it. Any
 * thread may call these functions at any time.
 */
#ifndef GDRPY_USERS_H
#define GDRPY_USERS_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

/* Starts at zero. The low 31 bits count calls, the next 31 views; the top two hold the state of
 * close(). */
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

static inline bool core_users_closed(const core_users *users)
{
	return __atomic_load_n(users, __ATOMIC_RELAXED) & CORE_CLOSED;
}

static inline void core_users_let_go(core_users *users, uint64_t one)
{
	__atomic_fetch_sub(users, one, __ATOMIC_ACQ_REL);
}

/* Add a call or a view, which core_users_let_go() removes; false if the object is closed. */
static inline bool core_users_hold(core_users *users, uint64_t one)
{
	while (__atomic_fetch_add(users, one, __ATOMIC_ACQUIRE) & (CORE_CLOSING | CORE_CLOSED)) {
		core_users_let_go(users, one);
		while (__atomic_load_n(users, __ATOMIC_RELAXED) & CORE_CLOSING)
			sched_yield(); /* the outcome is known once the running calls end */
		if (__atomic_load_n(users, __ATOMIC_RELAXED) & CORE_CLOSED)
			return false;
	}
	return true;
}

/* Add a view for a call that turns out to be long, even if a close() already waits for it. */
static inline void core_users_stay(core_users *users)
{
	__atomic_fetch_add(users, CORE_ONE_VIEW, __ATOMIC_RELAXED);
}

/* Close the object: 0, the number of views that prevent it, or -1 if it is already closed. */
static inline int64_t core_users_close(core_users *users)
{
	uint64_t found;

	while (__atomic_fetch_or(users, CORE_CLOSING, __ATOMIC_RELAXED) & CORE_CLOSING)
		sched_yield(); /* another thread is closing it */
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

/* Close the object although it has users; whether it has any. */
static inline bool core_users_retire(core_users *users)
{
	return __atomic_fetch_or(users, CORE_CLOSED, __ATOMIC_ACQ_REL) &
	       ~(CORE_CLOSED | CORE_CLOSING);
}

/* Whether a closed object has no user left, nor gets one. */
static inline bool core_users_gone(const core_users *users)
{
	return (__atomic_load_n(users, __ATOMIC_ACQUIRE) & ~CORE_CLOSING) == CORE_CLOSED;
}

#endif
