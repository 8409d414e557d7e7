/* SPDX-License-Identifier: MIT */
/*
 * Host memory that its owner registered: the engine copies to and from it without staging.
 *
 * Each engine pins the pages when it first copies them, for as long as they are registered. Pages
 * that the driver refuses are staged like any others.
 */
#include <errno.h>
#include <stdlib.h>

#include "engine/private.h"

/* The pages in one engine. */
struct pinned {
	struct pinned *next;
	struct core_engine *engine;
	struct core_link *link; /* as long as it is the engine's */
	struct core_span span;
	bool refused;
};

struct core_registration {
	struct core_registration *next;
	unsigned int users; /* its owner, until it is unregistered, and queues */
	const char *host;
	size_t host_nbytes;
	char *pages; /* which hold them */
	size_t nbytes;
	bool readonly;
	unsigned int forks;
	pthread_mutex_t lock; /* guards `pins` */
	struct pinned *pins;
};

/* Read: while a registration is used; write: to change the list. */
static pthread_rwlock_t lock;
static struct core_registration *registrations;

void core_registrations_forget(void)
{
	registrations = NULL;
	core_writers_lock(&lock);
}

struct core_registration *core_engine_register(const void *host, size_t nbytes, bool readonly,
					       struct core_error *error)
{
	const uintptr_t page = core_page_nbytes(), begin = (uintptr_t)host & -page;
	struct core_registration *registration = calloc(1, sizeof(*registration));

	if (!registration)
		return core_fail_malloc_null(error);
	registration->users = 1;
	registration->host = host;
	registration->host_nbytes = nbytes;
	registration->pages = (char *)begin;
	registration->nbytes = (((uintptr_t)host + nbytes + page - 1) & -page) - begin;
	registration->readonly = readonly;
	registration->forks = core_engine_forks();
	pthread_mutex_init(&registration->lock, NULL);
	pthread_rwlock_wrlock(&lock);
	registration->next = registrations;
	__atomic_store_n(&registrations, registration, __ATOMIC_RELEASE);
	pthread_rwlock_unlock(&lock);
	return registration;
}

static void unpin(struct pinned *pinned)
{
	struct core_engine *engine = pinned->engine;

	pthread_rwlock_rdlock(&engine->lock);
	if (engine->link == pinned->link && !pinned->refused)
		core_link_unregister(engine->link, &pinned->span);
	pthread_rwlock_unlock(&engine->lock);
}

void core_registration_let_go(struct core_registration *registration)
{
	struct pinned *next;

	if (__atomic_sub_fetch(&registration->users, 1, __ATOMIC_ACQ_REL))
		return;
	for (struct pinned *pinned = registration->pins; pinned; pinned = next) {
		next = pinned->next;
		if (registration->forks == core_engine_forks())
			unpin(pinned);
		free(pinned);
	}
	free(registration);
}

void core_engine_unregister(struct core_registration *registration)
{
	struct core_registration **entry = &registrations;

	if (registration->forks == core_engine_forks()) {
		pthread_rwlock_wrlock(&lock); /* waits for the copies that use it */
		while (*entry != registration)
			entry = &(*entry)->next;
		*entry = registration->next;
		pthread_rwlock_unlock(&lock);
	}
	core_registration_let_go(registration);
}

/* The pages in an engine's link, pinned if necessary; NULL if they cannot be. */
static const struct pinned *pin(struct core_registration *registration, struct core_engine *engine)
{
	struct pinned *pinned;
	struct core_error ignored;

	pthread_mutex_lock(&registration->lock);
	for (pinned = registration->pins; pinned; pinned = pinned->next)
		if (pinned->engine == engine && pinned->link == engine->link)
			break;
	if (!pinned)
		pinned = calloc(1, sizeof(*pinned));
	if (pinned && !pinned->engine) {
		pinned->engine = engine;
		pinned->link = engine->link;
		pinned->refused =
			core_link_register(engine->link, registration->pages, registration->nbytes,
					   registration->readonly, &pinned->span, &ignored);
		pinned->next = registration->pins;
		registration->pins = pinned;
	}
	pthread_mutex_unlock(&registration->lock);
	return pinned && !pinned->refused ? pinned : NULL;
}

/* Whether the engine may copy bytes to or from registered memory. */
static bool holds(const struct core_registration *one, const char *host, size_t nbytes, bool to_gpu)
{
	return host >= one->host && nbytes <= one->host_nbytes &&
	       (size_t)(host - one->host) <= one->host_nbytes - nbytes &&
	       (to_gpu || !one->readonly);
}

bool core_engine_has_registered(const char *host, size_t nbytes, bool to_gpu)
{
	const struct core_registration *one;
	bool found = false;

	if (!__atomic_load_n(&registrations, __ATOMIC_ACQUIRE) || pthread_rwlock_tryrdlock(&lock))
		return false;
	for (one = registrations; one && !found; one = one->next)
		found = holds(one, host, nbytes, to_gpu);
	pthread_rwlock_unlock(&lock);
	return found;
}

/* The registration that holds memory, with the lock held; or NULL. */
static struct core_registration *find(struct core_engine *engine, const char *host, size_t nbytes,
				      bool to_gpu, uint64_t *va)
{
	struct core_registration *one;

	for (one = registrations; one; one = one->next) {
		const struct pinned *pinned =
			holds(one, host, nbytes, to_gpu) ? pin(one, engine) : NULL;

		if (pinned) {
			*va = pinned->span.va + (uint64_t)(host - one->pages);
			break;
		}
	}
	return one;
}

bool core_registered_begin(struct core_engine *engine, const char *host, size_t nbytes, bool to_gpu,
			   uint64_t *va)
{
	if (!__atomic_load_n(&registrations, __ATOMIC_ACQUIRE))
		return false;
	pthread_rwlock_rdlock(&lock);
	if (find(engine, host, nbytes, to_gpu, va))
		return true;
	pthread_rwlock_unlock(&lock);
	return false;
}

struct core_registration *core_registered_hold(struct core_engine *engine, const char *host,
					       size_t nbytes, bool to_gpu, uint64_t *va)
{
	struct core_registration *registration;

	pthread_rwlock_rdlock(&lock);
	registration = find(engine, host, nbytes, to_gpu, va);
	if (registration)
		__atomic_add_fetch(&registration->users, 1, __ATOMIC_RELAXED);
	pthread_rwlock_unlock(&lock);
	return registration;
}

void core_registered_end(void)
{
	pthread_rwlock_unlock(&lock);
}
