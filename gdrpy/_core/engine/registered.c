/* SPDX-License-Identifier: MIT */
/*
 * Host memory that its owner registered: the engine copies to and from it without staging.
 *
 * Each engine pins the pages when it first copies them, for as long as they are registered. Pages
 * that the driver refuses are staged as any others are.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

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
	const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)host & -page;
	struct core_registration *registration = calloc(1, sizeof(*registration));

	if (!registration) {
		core_fail_call(error, ENOMEM, 0, "malloc");
		return NULL;
	}
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
	struct core_error ignored;

	pthread_rwlock_rdlock(&engine->lock);
	if (engine->link == pinned->link && !pinned->refused) {
		core_link_unmap(engine->link, pinned->span.object, pinned->span.va, &ignored);
		core_rm_free(engine->link->client, engine->link->device->handle,
			     pinned->span.object, &ignored);
	}
	pthread_rwlock_unlock(&engine->lock);
}

void core_engine_unregister(struct core_registration *registration)
{
	struct core_registration **entry = &registrations;
	struct pinned *next;

	if (registration->forks == core_engine_forks()) {
		pthread_rwlock_wrlock(&lock); /* waits for the copies that use it */
		while (*entry != registration)
			entry = &(*entry)->next;
		*entry = registration->next;
		pthread_rwlock_unlock(&lock);
		for (struct pinned *pinned = registration->pins; pinned; pinned = pinned->next)
			unpin(pinned);
	}
	for (struct pinned *pinned = registration->pins; pinned; pinned = next) {
		next = pinned->next;
		free(pinned);
	}
	free(registration);
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

bool core_registered_begin(struct core_engine *engine, const char *host, size_t nbytes, bool to_gpu,
			   uint64_t *va)
{
	struct core_registration *one;
	const struct pinned *pinned = NULL;

	if (!__atomic_load_n(&registrations, __ATOMIC_ACQUIRE))
		return false;
	pthread_rwlock_rdlock(&lock);
	for (one = registrations; one && !pinned; one = one->next)
		if (host >= one->host && nbytes <= one->host_nbytes &&
		    (size_t)(host - one->host) <= one->host_nbytes - nbytes &&
		    (to_gpu || !one->readonly)) {
			pinned = pin(one, engine);
			*va = pinned ? pinned->span.va + (uint64_t)(host - one->pages) : 0;
		}
	if (!pinned)
		pthread_rwlock_unlock(&lock);
	return pinned;
}

void core_registered_end(void)
{
	pthread_rwlock_unlock(&lock);
}
