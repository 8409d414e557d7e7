/* SPDX-License-Identifier: MIT */
#include "session.h"

#include <errno.h>
#include <stdlib.h>

#include "log.h"
#include "pins.h"

unsigned int core_generation;
pthread_mutex_t core_objects_lock = PTHREAD_MUTEX_INITIALIZER;

static _Atomic(struct gdr *) sessions;

static void close_node(struct gdr *session)
{
	if (session->has_node)
		core_node_close(&session->node);
	session->has_node = false;
}

static void lock_objects(void)
{
	pthread_mutex_lock(&core_objects_lock);
}

static void unlock_objects(void)
{
	pthread_mutex_unlock(&core_objects_lock);
}

/* Prefer a closing thread: busy threads could otherwise keep it out forever. */
static void init_lock(struct gdr *session)
{
	pthread_rwlockattr_t attributes;

	pthread_rwlockattr_init(&attributes);
	pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&session->lock, &attributes);
	pthread_rwlockattr_destroy(&attributes);
}

/*
 * A child's copy of a node would keep the parent's pins. The child's only thread holds no other
 * lock, so the locks that the parent's other threads held are reset.
 */
static void begin_child(void)
{
	core_generation++;
	for (struct gdr *session = sessions; session; session = session->next) {
		close_node(session);
		init_lock(session);
	}
	core_pins_begin_child();
	unlock_objects();
}

static void __attribute__((constructor)) watch_forks(void)
{
	pthread_atfork(lock_objects, unlock_objects, begin_child);
}

static struct gdr *new_session(void)
{
	struct gdr *session = calloc(1, sizeof(*session));

	if (!session)
		return NULL;
	init_lock(session);
	session->next = sessions;
	sessions = session;
	return session;
}

struct gdr *core_session_open(void)
{
	struct gdr *session;

	lock_objects();
	session = sessions;
	while (session && session->open)
		session = session->next;
	if (!session)
		session = new_session();
	if (session) {
		session->generation = core_generation;
		session->has_node = !core_node_open(&session->node, GDRDRV_NODE);
		session->open = true;
	}
	unlock_objects();
	return session;
}

static bool is_session(const struct gdr *wanted)
{
	const struct gdr *session = sessions;

	while (session && session != wanted)
		session = session->next;
	return session;
}

static int refuse_closed(const char *call)
{
	return core_refuse(EINVAL, "%s: this gdr_t is closed: call gdr_open() again", call);
}

static int check(const struct gdr *session, const char *call)
{
	if (!is_session(session))
		return core_refuse(EINVAL, "%s: %p is not a gdr_t: pass what gdr_open() returned",
				   call, (const void *)session);
	return session->open ? 0 : refuse_closed(call);
}

/* Lock an open session; in a forked child only to close it. */
static int enter(struct gdr *session, const char *call, int (*lock)(pthread_rwlock_t *))
{
	int ret = check(session, call);

	if (ret)
		return ret;
	if (lock == pthread_rwlock_rdlock && session->generation != core_generation)
		return core_refuse(
			EACCES,
			"%s: this gdr_t belongs to the parent process: call gdr_open() after the "
			"fork, or start processes with exec",
			call);
	lock(&session->lock);
	if (session->open)
		return 0;
	pthread_rwlock_unlock(&session->lock);
	return refuse_closed(call);
}

int core_session_enter(struct gdr *session, const char *call)
{
	return enter(session, call, pthread_rwlock_rdlock);
}

void core_session_leave(struct gdr *session)
{
	pthread_rwlock_unlock(&session->lock);
}

int core_session_begin_close(struct gdr *session)
{
	return enter(session, "gdr_close", pthread_rwlock_wrlock);
}

void core_session_finish_close(struct gdr *session)
{
	lock_objects();
	close_node(session);
	session->open = false;
	unlock_objects();
	pthread_rwlock_unlock(&session->lock);
}
