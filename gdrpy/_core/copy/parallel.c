/* SPDX-License-Identifier: MIT */
#include "copy/parallel.h"

#include <pthread.h>
#include <signal.h>
#include <stdint.h>

#include "common/wait.h"

/* Each thread copies whole pages, so that no two threads store to the same line. */
#define PAGE 4096

/* Most jobs end so soon after the caller's parts. A thread that sleeps wakes later than that. */
#define SPIN_NS 50000

static struct {
	pthread_mutex_t turn; /* held during a job */
	pthread_mutex_t lock; /* guards everything below */
	pthread_cond_t begun, done;
	unsigned int threads;
	core_part_fn run;
	void *context;
	unsigned int parts, next;
	unsigned int running; /* written with the lock held */
} pool;

static void reset_pool(void)
{
	pthread_mutex_init(&pool.turn, NULL);
	pthread_mutex_init(&pool.lock, NULL);
	pthread_cond_init(&pool.begun, NULL);
	pthread_cond_init(&pool.done, NULL);
	pool.threads = 0;
	pool.parts = pool.next = pool.running = 0;
}

__attribute__((constructor)) static void prepare_pool(void)
{
	reset_pool();
	pthread_atfork(NULL, NULL, reset_pool);
}

static void count_running(int change)
{
	__atomic_fetch_add(&pool.running, change, __ATOMIC_RELAXED);
}

/* Run the parts not yet taken; the lock is held before and after. */
static void take_parts(void)
{
	while (pool.next < pool.parts) {
		unsigned int part = pool.next++;

		count_running(1);
		pthread_mutex_unlock(&pool.lock);
		pool.run(pool.context, part);
		pthread_mutex_lock(&pool.lock);
		count_running(-1);
	}
}

/* Wait for the parts that other threads took; the lock is held before and after. */
static void wait_for_parts(void)
{
	const int64_t spins_until = core_now_ns() + SPIN_NS;

	pthread_mutex_unlock(&pool.lock);
	while (__atomic_load_n(&pool.running, __ATOMIC_RELAXED) && core_now_ns() < spins_until)
		core_relax();
	pthread_mutex_lock(&pool.lock);
	while (pool.running)
		pthread_cond_wait(&pool.done, &pool.lock);
}

static void *work(void *unused)
{
	pthread_mutex_lock(&pool.lock);
	for (;;) {
		while (pool.next == pool.parts)
			pthread_cond_wait(&pool.begun, &pool.lock);
		take_parts();
		if (!pool.running)
			pthread_cond_signal(&pool.done);
	}
	return unused;
}

/* Start threads until `wanted` exist or the system refuses. They block all signals. */
static void start_threads(unsigned int wanted)
{
	sigset_t all, before;
	pthread_attr_t detached;
	pthread_t thread;

	if (pool.threads >= wanted)
		return;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	while (pool.threads < wanted && !pthread_create(&thread, &detached, work, NULL))
		pool.threads++;
	pthread_attr_destroy(&detached);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void core_parallel(unsigned int parts, core_part_fn run, void *context)
{
	if (parts <= 1 || pthread_mutex_trylock(&pool.turn)) {
		for (unsigned int part = 0; part < parts; part++)
			run(context, part);
		return;
	}
	pthread_mutex_lock(&pool.lock);
	start_threads(parts < CORE_THREADS_MAX ? parts - 1 : CORE_THREADS_MAX - 1);
	pool.run = run;
	pool.context = context;
	pool.next = 0;
	pool.parts = parts;
	for (unsigned int part = 1; part < parts; part++)
		pthread_cond_signal(&pool.begun);
	take_parts();
	wait_for_parts();
	pthread_mutex_unlock(&pool.lock);
	pthread_mutex_unlock(&pool.turn);
}

struct copy {
	enum core_mapping_kind type;
	char *to;
	const char *from;
	size_t nbytes;
	size_t share; /* bytes of a part: whole pages of the mapping, except at both ends */
	size_t skew;  /* offset of the mapping in its first page */
	bool to_mapping;
};

static void copy_share(void *context, unsigned int part)
{
	const struct copy *copy = context;
	size_t begin = part ? part * copy->share - copy->skew : 0;
	size_t end = (part + 1) * copy->share - copy->skew;

	if (end > copy->nbytes)
		end = copy->nbytes;
	if (copy->to_mapping) {
		core_copy_to(copy->type, copy->to + begin, copy->from + begin, end - begin);
		core_store_fence();
	} else {
		core_copy_from(copy->type, copy->to + begin, copy->from + begin, end - begin);
	}
}

static void copy_by(unsigned int threads, struct copy *copy, const void *mapping)
{
	size_t span, pages;

	copy->skew = (uintptr_t)mapping % PAGE;
	span = copy->skew + copy->nbytes;
	pages = (span + PAGE - 1) / PAGE;
	copy->share = (pages + threads - 1) / threads * PAGE;
	core_parallel((unsigned int)((span + copy->share - 1) / copy->share), copy_share, copy);
}

void core_copy_to_by(unsigned int threads, enum core_mapping_kind type, void *mapping,
		     const void *host, size_t nbytes)
{
	struct copy copy = {type, mapping, host, nbytes, .to_mapping = true};

	if (threads > 1 && nbytes)
		copy_by(threads, &copy, mapping);
	else
		core_copy_to(type, mapping, host, nbytes);
}

void core_copy_from_by(unsigned int threads, enum core_mapping_kind type, void *host,
		       const void *mapping, size_t nbytes)
{
	struct copy copy = {type, host, mapping, nbytes, .to_mapping = false};

	if (threads > 1 && nbytes)
		copy_by(threads, &copy, mapping);
	else
		core_copy_from(type, host, mapping, nbytes);
}
