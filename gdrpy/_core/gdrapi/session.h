/* SPDX-License-Identifier: MIT */
/*
 * A gdr_t: a session that calls enter, and that gdr_close() waits for them to leave.
 *
 * A closed session is kept for the next gdr_open() and never freed, so that late calls are
 * detected.
 */
#ifndef GDRAPI_SESSION_H
#define GDRAPI_SESSION_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "backends/backends.h"
#include "exports.h"

struct gdr {
	struct gdr *next;      /* in the list of all sessions */
	pthread_rwlock_t lock; /* write-locked by gdr_close() */
	_Atomic bool open;
	unsigned int generation; /* core_generation when it was opened */

	bool has_node; /* the kernel module's; a forked child closes its copy at once */
	struct core_node node;
	const struct core_backend *forced;
	_Atomic(const struct core_backend *)
		backend; /* of the last pin, or expected for the first */
};

/* How many forks separate this process from the one that loaded the library. */
extern unsigned int core_generation;

/* Guards the sets of sessions and of pins. Held briefly, and across a fork. */
extern pthread_mutex_t core_objects_lock;

/* Open a session, with the module's node if there is one; NULL without memory. */
struct gdr *core_session_open(void);

/* 0, or EINVAL or EACCES, logged, if the call is not allowed. */
int core_session_enter(struct gdr *session, const char *call);
void core_session_leave(struct gdr *session);

/* Likewise, exclusively, and also in a forked child. No call enters after that. */
int core_session_begin_close(struct gdr *session);
void core_session_finish_close(struct gdr *session);

/* --- choice.c: a session's backend, by the environment, the machine and the memory --- */

/* Read the environment and ask the backends; false, with errors logged, if none is usable. */
bool core_choose(struct gdr *session);

/* Whether pins keep freed memory, and whether a pin may be forced through BAR1. */
bool core_pins_persist(const struct gdr *session);
bool core_can_force_pcie(const struct gdr *session);

/* Take in at least 1 byte; NULL with *error filled in. */
struct core_memory *core_take_range(struct gdr *session, uint64_t ptr, size_t nbytes,
				    bool force_pcie, struct core_error *error);

#endif
