/* SPDX-License-Identifier: MIT */
#include "spin.h"

#include "pyhelp.h"

#include <sched.h>

/* The time after which signals are checked and the CPU is yielded. */
#define ROUND_NS 1000000

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

static int64_t time_left(const struct core_spin *spin, int64_t waited)
{
	if (spin->timeout == INT64_MAX)
		return INT64_MAX;
	return waited < spin->timeout ? spin->timeout - waited : 0;
}

/* Also tells what is left of the timeout then. */
static bool look_for_a_round(const struct core_spin *spin, int64_t began, int64_t *left)
{
	int64_t now = core_now_ns();
	int64_t end = now + ROUND_NS;
	bool came;

	do {
		if (spin->naps)
			core_nap(now - began);
		came = look(spin);
		now = core_now_ns();
		*left = time_left(spin, now - began);
	} while (!came && *left && now < end);
	if (!came && *left)
		sched_yield();
	return came;
}

enum core_spin_end core_spin(struct core_spin *spin)
{
	int64_t began, left = spin->timeout;
	enum core_spin_end end;
	PyThreadState *thread;
	bool came;

	if (look(spin))
		return CORE_SPIN_CAME;

	began = core_now_ns();
	do {
		thread = PyEval_SaveThread();
		came = look_for_a_round(spin, began, &left);
		PyEval_RestoreThread(thread);

		if (came)
			end = CORE_SPIN_CAME;
		else if (PyErr_CheckSignals() || !spin->may_go_on(spin->context))
			end = CORE_SPIN_ERROR;
		else
			end = CORE_SPIN_LATE;
	} while (end == CORE_SPIN_LATE && left);
	/* Other threads may have kept the GIL for long, and may at the next call, too. */
	spin->timeout = time_left(spin, core_now_ns() - began);
	return end;
}
