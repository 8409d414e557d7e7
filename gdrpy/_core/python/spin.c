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
		if (spin->timeout != INT64_MAX)
			*left = now - began < spin->timeout ? spin->timeout - (now - began) : 0;
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
	spin->timeout = left;
	return end;
}
