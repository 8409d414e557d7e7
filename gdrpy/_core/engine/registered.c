/* SPDX-License-Identifier: MIT */
/*
 * Host memory that its owner registered: the engine copies to and from it without staging.
 *
 * Each engine pins the pages when it first copies them, for as long as they are registered. Pages
 * that the driver refuses are staged like any others: for good, or if memory is short for some
 * seconds.
 */
#include <errno.h>
#include <stdlib.h>

#include "common/wait.h"
#include "engine/private.h"

/* The pages in one engine. */
struct pinned {
	struct pinned *next;
	struct core_engine *engine;
	struct core_link *link; /* as long as it is the engine's */
	struct core_span span;
};

struct core_registration {
	struct core_registration *next;
	unsigned int users; /* its owner, until it is unregistered, copies and queues */
	const char *host;
	size_t host_nbytes;
	char *pages; /* which hold them */
	size_t nbytes;
	bool readonly;
	int64_t again; /* when it may be tried to pin them, after a failure */
	unsigned int forks;
	pthread_mutex_t lock; /* while an engine pins the pages */
	struct pinned *pins;  /* none is removed before the registration is freed */
};

static pthread_mutex_t lock; /* guards the list; no call to the driver is made with it */
static struct core_registration *registrations;

void core_registrations_forget(void)
{
	registrations = NULL;
	pthread_mutex_init(&lock, NULL);
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
	pthread_mutex_lock(&lock);
	registration->next = registrations;
	__atomic_store_n(&registrations, registration, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
	return registration;
}

static void unpin(struct pinned *pinned)
{
	struct core_engine *engine = pinned->engine;

	pthread_rwlock_rdlock(&engine->lock);
	if (engine->link == pinned->link)
		core_link_unregister(engine->link, &pinned->span);
	pthread_rwlock_unlock(&engine->lock);
}

bool core_registration_drop(struct core_registration *registration)
{
	return !__atomic_sub_fetch(&registration->users, 1, __ATOMIC_ACQ_REL);
}

void core_registration_free(struct core_registration *registration)
{
	struct pinned *next;

	for (struct pinned *pinned = registration->pins; pinned; pinned = next) {
		next = pinned->next;
		if (registration->forks == core_engine_forks())
			unpin(pinned);
		free(pinned);
	}
	free(registration);
}

void core_registration_let_go(struct core_registration *registration)
{
	if (core_registration_drop(registration))
		core_registration_free(registration);
}

void core_engine_unregister(struct core_registration *registration)
{
	struct core_registration **entry = &registrations;

	if (registration->forks == core_engine_forks()) {
		pthread_mutex_lock(&lock);
		while (*entry != registration)
			entry = &(*entry)->next;
		__atomic_store_n(entry, registration->next, __ATOMIC_RELAXED);
		pthread_mutex_unlock(&lock);
	}
	core_registration_let_go(registration);
}

/* Pin the pages in an engine's link. */
static struct pinned *make_pin(struct core_registration *registration, struct core_engine *engine,
			       struct core_error *error)
{
	struct pinned *pinned = calloc(1, sizeof(*pinned));

	if (!pinned)
		return core_fail_call_null(error, ENOMEM, 0, "malloc");
	if (core_link_register(engine->link, registration->pages, registration->nbytes,
			       registration->readonly, &pinned->span, error)) {
		free(pinned);
		return NULL;
	}
	pinned->engine = engine;
	pinned->link = engine->link;
	pinned->next = registration->pins;
	__atomic_store_n(&registration->pins, pinned, __ATOMIC_RELEASE);
	return pinned;
}

/* The pages in an engine's link, or NULL. */
static const struct pinned *find_pin(const struct core_registration *registration,
				     const struct core_engine *engine)
{
	const struct pinned *pinned = __atomic_load_n(&registration->pins, __ATOMIC_ACQUIRE);

	while (pinned && !(pinned->engine == engine && pinned->link == engine->link))
		pinned = pinned->next;
	return pinned;
}

/* The same, pinned if necessary; NULL if they cannot be. */
static const struct pinned *pin(struct core_registration *registration, struct core_engine *engine)
{
	const struct pinned *pinned = find_pin(registration, engine);
	struct core_error error;

	if (pinned)
		return pinned;
	pthread_mutex_lock(&registration->lock);
	pinned = find_pin(registration, engine);
	if (!pinned)
		pinned = make_pin(registration, engine, &error);
	if (!pinned)
		__atomic_store_n(&registration->again,
				 core_is_refusal(&error) ? CORE_NEVER
							 : core_now_ns() + CORE_TRY_AGAIN_NS,
				 __ATOMIC_RELAXED);
	pthread_mutex_unlock(&registration->lock);
	return pinned;
}

bool core_registration_reach(struct core_registration *registration, struct core_engine *engine,
			     const char *host, uint64_t *va)
{
	const struct pinned *pinned = pin(registration, engine);

	if (pinned)
		*va = pinned->span.va + (uint64_t)(host - registration->pages);
	return pinned;
}

/* The registration of bytes that the engine may copy in this direction, or NULL. */
static struct core_registration *find(const char *host, size_t nbytes, bool to_gpu)
{
	struct core_registration *one;

	for (one = registrations; one; one = one->next)
		if (host >= one->host && nbytes <= one->host_nbytes &&
		    (size_t)(host - one->host) <= one->host_nbytes - nbytes &&
		    (to_gpu || !one->readonly) &&
		    core_has_come(__atomic_load_n(&one->again, __ATOMIC_RELAXED)))
			break;
	return one;
}

struct core_registration *core_registration_hold(const char *host, size_t nbytes, bool to_gpu)
{
	struct core_registration *registration;

	if (!__atomic_load_n(&registrations, __ATOMIC_RELAXED))
		return NULL;
	pthread_mutex_lock(&lock);
	registration = find(host, nbytes, to_gpu);
	if (registration)
		__atomic_add_fetch(&registration->users, 1, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&lock);
	return registration;
}

bool core_engine_has_registered(const char *host, size_t nbytes, bool to_gpu)
{
	bool found;

	if (!__atomic_load_n(&registrations, __ATOMIC_RELAXED))
		return false;
	pthread_mutex_lock(&lock);
	found = find(host, nbytes, to_gpu);
	pthread_mutex_unlock(&lock);
	return found;
}
