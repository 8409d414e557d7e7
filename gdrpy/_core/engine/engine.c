/* SPDX-License-Identifier: MIT */
/* The engines of this process: each made on first use, made anew once, or refused for good. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/private.h"

static pthread_mutex_t engines_lock = PTHREAD_MUTEX_INITIALIZER;
static struct core_engine *engines; /* never freed */
static unsigned int forks;

/* RM ties a client to the process that opened it, and its descriptors are closed already. */
static void begin_child(void)
{
	forks++;
	engines = NULL;
	pthread_mutex_init(&engines_lock, NULL);
	core_registrations_forget();
}

__attribute__((constructor)) static void watch_forks(void)
{
	core_registrations_forget();
	pthread_atfork(NULL, NULL, begin_child);
}

unsigned int core_engine_forks(void)
{
	return forks;
}

bool core_engine_is_own(const struct core_engine *engine)
{
	return engine->forks == forks;
}

/* Writers go first: busy readers could delay a rebuild for ever. So no thread may take it twice. */
static void init_lock(pthread_rwlock_t *lock)
{
	pthread_rwlockattr_t attributes;

	pthread_rwlockattr_init(&attributes);
#ifdef __GLIBC__
	pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
#endif
	pthread_rwlock_init(lock, &attributes);
	pthread_rwlockattr_destroy(&attributes);
}

static struct core_engine *new_engine(const struct core_rm_gpu *gpu, struct core_error *error)
{
	struct core_engine *engine = calloc(1, sizeof(*engine));

	if (!engine)
		return core_fail_malloc_null(error);
	engine->gpu = *gpu;
	engine->forks = forks;
	init_lock(&engine->lock);
	pthread_mutex_init(&engine->list, NULL);
	pthread_mutex_init(&engine->lanes_lock, NULL);
	pthread_cond_init(&engine->lane_freed, NULL);
	engine->next = engines;
	engines = engine;
	return engine;
}

/* Compare PCI addresses: a caller that names a GPU by its address does not know the minor number.
 */
static bool is_same_gpu(const struct core_rm_gpu *one, const struct core_rm_gpu *other)
{
	return one->pci_domain == other->pci_domain && one->pci_bus == other->pci_bus &&
	       one->pci_slot == other->pci_slot;
}

static struct core_engine *find(const struct core_rm_gpu *gpu, struct core_error *error)
{
	struct core_engine *engine;

	pthread_mutex_lock(&engines_lock);
	for (engine = engines; engine; engine = engine->next)
		if (is_same_gpu(&engine->gpu, gpu))
			break;
	if (!engine)
		engine = new_engine(gpu, error);
	pthread_mutex_unlock(&engines_lock);
	return engine;
}

/* Make the link, unless there is one or there will be none; the lock is held to write. */
static void make_link(struct core_engine *engine, struct core_error *error)
{
	if (engine->link || engine->refused)
		return;
	engine->link = core_link_open(&engine->gpu, error);
	if (!engine->link && error->failure == CORE_FAILED_UNAVAILABLE) {
		/* Any other failure may be gone at the next try. */
		engine->refusal = *error;
		engine->refused = true;
	}
}

struct core_engine *core_engine_of(const struct core_rm_gpu *gpu, struct core_error *error)
{
	struct core_engine *engine = find(gpu, error);
	bool usable;

	if (!engine)
		return NULL;
	pthread_rwlock_rdlock(&engine->lock);
	usable = engine->link;
	pthread_rwlock_unlock(&engine->lock);
	if (usable)
		return engine;
	pthread_rwlock_wrlock(&engine->lock);
	make_link(engine, error);
	usable = engine->link;
	if (engine->refused)
		*error = engine->refusal;
	pthread_rwlock_unlock(&engine->lock);
	return usable ? engine : NULL;
}

/* `cause`: why the link could not be made anew; NULL if it was before. */
static void give_up(struct core_engine *engine, const struct core_error *reason,
		    const struct core_error *cause)
{
	core_fail(&engine->refusal, CORE_FAILED_UNAVAILABLE, EIO,
		  "%s; %s%s; this process does not use the copy engine any more: copy through the "
		  "mapping, or by CUDA",
		  reason->message,
		  cause ? "making it anew failed: " : "this process lost the copy engine before",
		  cause ? cause->message : "");
	engine->refused = true;
	core_link_end(engine->link);
	engine->link = NULL;
}

/* Make a lost link anew, unless another thread did. The old one keeps the memory until then. */
static void rebuild(struct core_engine *engine, const struct core_link *lost,
		    const struct core_error *reason)
{
	struct core_link *fresh = NULL;
	struct core_error cause;
	bool again;

	pthread_rwlock_wrlock(&engine->lock);
	if (engine->link == lost) {
		again = engine->rebuilt;
		if (!again)
			fresh = core_link_open(&engine->gpu, &cause);
		engine->rebuilt = true;
		if (fresh && core_engine_move(engine, fresh, &cause)) {
			core_link_close(fresh);
			fresh = NULL;
		}
		if (fresh) {
			core_link_end(engine->link);
			engine->link = fresh;
		} else {
			give_up(engine, reason, again ? NULL : &cause);
		}
		for (int i = 0; i < CORE_STAGING_LANES; i++)
			engine->lanes[i].memory.object = 0;
	}
	pthread_rwlock_unlock(&engine->lock);
}

int core_engine_run(struct core_engine *engine, core_engine_job run, void *job,
		    struct core_error *error)
{
	struct core_link *link;
	bool lost;
	int ret;

	if (!core_engine_is_own(engine))
		return core_fail(error, CORE_FAILED_UNAVAILABLE, ENODEV,
				 "the copy engine is the parent's: a forked child must open the "
				 "memory itself");
	do {
		pthread_rwlock_rdlock(&engine->lock);
		link = engine->link;
		ret = -1;
		if (link)
			ret = run(engine, job, error);
		else
			*error = engine->refusal;
		lost = ret && link && core_link_is_lost(link, error);
		pthread_rwlock_unlock(&engine->lock);
		if (lost)
			rebuild(engine, link, error);
	} while (lost);
	return ret;
}

/* Open a client. Without a driver, the error says what is missing. */
static struct core_rm *open_client(struct core_error *error)
{
	struct core_rm *client;

	if (!core_rm_open(&client, error))
		return client;
	core_rm_explain_open(error);
	return NULL;
}

int core_engine_find_gpu(int fd, struct core_rm_gpu *gpu, struct core_error *error)
{
	struct core_rm *client = open_client(error);
	int ret;

	if (!client)
		return -1;
	ret = core_rm_export_gpu(client, fd, gpu, error);
	core_rm_close(client);
	if (ret && error->failure == CORE_FAILED_CALL && error->number == EINVAL)
		return core_fail(
			error, CORE_FAILED_UNAVAILABLE, EINVAL,
			"the copy engine cannot be used: this memory's descriptor is not one "
			"of the NVIDIA driver's GPU memory");
	return ret;
}

/* Fill in what `gpu` lacks; NULL: the first one that this process may use. */
static int complete_gpu(const struct core_rm_gpu *wanted, struct core_rm_gpu *gpu,
			struct core_error *error)
{
	struct core_rm *client = open_client(error);
	uint32_t instance = 0;
	int ret = -1;

	if (!client)
		return -1;
	if (wanted)
		ret = core_rm_find_card(client, wanted, &instance, gpu, error);
	for (; ret && !wanted && instance < NVRM_MAX_CARDS; instance++)
		ret = core_rm_find_card(client, NULL, &instance, gpu, error);
	core_rm_close(client);
	return ret;
}

int core_engine_describe(const struct core_rm_gpu *wanted, char text[128], struct core_error *error)
{
	struct core_engine *engine;
	struct core_rm_gpu gpu;
	int ret = -1;

	if (complete_gpu(wanted, &gpu, error))
		return -1;
	engine = core_engine_of(&gpu, error);
	if (!engine)
		return -1;
	pthread_rwlock_rdlock(&engine->lock);
	if (engine->link) {
		ret = 0;
		snprintf(text, 128, "COPY%u of GPU %04x:%02x:%02x.0, self-check passed",
			 engine->link->index, gpu.pci_domain, gpu.pci_bus, gpu.pci_slot);
	} else {
		*error = engine->refusal;
	}
	pthread_rwlock_unlock(&engine->lock);
	return ret;
}
