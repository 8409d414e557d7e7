/* SPDX-License-Identifier: MIT */
/*
 * What a gdr_t is: a way to GPU memory, which calls enter and gdr_close() waits for them to leave.
 *
 * A closed one is kept for the next gdr_open() and never freed, so that a late call finds out.
 */
#ifndef GDRAPI_SESSION_H
#define GDRAPI_SESSION_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "backends/backends.h"
#include "exports.h"

struct gdr {
	struct gdr *next;      /* of all there are */
	pthread_rwlock_t lock; /* for writing by gdr_close() */
	_Atomic bool open;
	unsigned int generation; /* core_generation where it was opened */

	bool has_node; /* the kernel module's; a forked child closes its copy at once */
	struct core_node node;
	const struct core_backend *forced;
	_Atomic(const struct core_backend *)
		backend; /* of the last pin, or expected of the first */
};

/* How many forks lie between the loading of the library and this process. */
extern unsigned int core_generation;

/* Held for a moment, and across a fork: by who changes which sessions and pins there are. */
extern pthread_mutex_t core_objects_lock;

/* With the module's node, if there is one; NULL without memory. */
struct gdr *core_session_open(void);

/* 0, or EINVAL or EACCES where the call cannot be made, which is told. */
int core_session_enter(struct gdr *session, const char *call);
void core_session_leave(struct gdr *session);

/* Likewise, alone, and in a forked child too; then nobody enters any more. */
int core_session_begin_close(struct gdr *session);
void core_session_finish_close(struct gdr *session);

#endif
