/* SPDX-License-Identifier: MIT */
#include "spin.h"

#include "pyhelp.h"

#include <sched.h>

/* The time after which signals are checked and the CPU is yielded. */
#define ROUND_NS 1000000

int64_t core_deadline(int64_t timeout)
{
	return timeout == INT64_MAX ? INT64_MAX : core_now_ns() + timeout;
}

int64_t core_time_left(int64_t deadline)
{
	int64_t left = deadline == INT64_MAX ? INT64_MAX : deadline - core_now_ns();

	return left > 0 ? left : 0;
}

static inline bool look(const struct core_spin *spin)
{
	int looks = spin->looks;

	do {
		if (spin->look(spin->context))
			return true;
		core_relax();
	} while (--looks);
	return false;
}

static bool look_for_a_round(const struct core_spin *spin, int64_t began, int64_t deadline,
			     bool *late)
{
	int64_t now = core_now_ns();
	int64_t end = now + ROUND_NS;
	bool came;

	do {
		if (spin->naps)
			core_nap(now - began);
		came = look(spin);
		now = core_now_ns();
		*late = now >= deadline;
	} while (!came && !*late && now < end);
	if (!came && !*late)
		sched_yield();
	return came;
}

enum core_spin_end core_spin(const struct core_spin *spin)
{
	PyThreadState *thread;
	int64_t began, deadline;
	bool came, late;

	if (look(spin))
		return CORE_SPIN_CAME;

	began = core_now_ns();
	deadline = core_deadline(spin->timeout);
	for (;;) {
		thread = PyEval_SaveThread();
		came = look_for_a_round(spin, began, deadline, &late);
		PyEval_RestoreThread(thread);

		if (came)
			return CORE_SPIN_CAME;
		if (PyErr_CheckSignals() || !spin->may_go_on(spin->context))
			return CORE_SPIN_ERROR;
		if (late)
			return CORE_SPIN_LATE;
	}
}
