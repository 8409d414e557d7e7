/* SPDX-License-Identifier: MIT */
/* Copies by several threads: every byte once, none beside them, and never a wait for each other. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>

#include "check.h"
#include "copy/parallel.h"

#define SPAN (1u << 20)
#define CANARY 0xa5
#define CALLERS 4
#define PARTS 64

static unsigned char source[SPAN + 64], target[SPAN + 64], untouched[SPAN + 64];

static void fill_source(void)
{
	for (size_t i = 0; i < sizeof(source); i++)
		source[i] = (unsigned char)(i * 31 + i / 251);
	memset(untouched, CANARY, sizeof(untouched));
}

static void check_copy(unsigned int threads, enum core_mapping_kind type, size_t to, size_t from,
		       size_t nbytes, bool to_mapping)
{
	memset(target, CANARY, sizeof(target));
	if (to_mapping)
		core_copy_to_by(threads, type, target + to, source + from, nbytes);
	else
		core_copy_from_by(threads, type, target + to, source + from, nbytes);
	core_store_fence();
	CHECK(!memcmp(target + to, source + from, nbytes));
	CHECK(!memcmp(target, untouched, to));
	CHECK(!memcmp(target + to + nbytes, untouched, sizeof(target) - to - nbytes));
}

static void a_copy_by_threads_moves_its_bytes_and_no_others(void)
{
	const size_t sizes[] = {0, 1, 63, 4095, 4096, 4097, 12345, 65536, 3 * 65536 + 7, SPAN};
	const unsigned int threads[] = {0, 1, 2, 3, 7, 16, 100};

	fill_source();
	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
		for (size_t t = 0; t < sizeof(threads) / sizeof(threads[0]); t++)
			for (int type = CORE_MAPPING_WC; type <= CORE_MAPPING_DEVICE; type++) {
				check_copy(threads[t], type, 0, 0, sizes[s], true);
				check_copy(threads[t], type, 13, 5, sizes[s], true);
				check_copy(threads[t], type, 5, 48, sizes[s], false);
			}
}

static unsigned int runs[PARTS];

static void count_run(void *context, unsigned int part)
{
	(void)context;
	__atomic_fetch_add(&runs[part], 1, __ATOMIC_RELAXED);
}

static void each_part_runs_once(void)
{
	memset(runs, 0, sizeof(runs));
	for (unsigned int parts = 0; parts <= PARTS; parts++)
		core_parallel(parts, count_run, NULL);
	for (unsigned int part = 0; part < PARTS; part++)
		CHECK_EQ(runs[part], PARTS - part);
}

static void nested(void *context, unsigned int part)
{
	(void)part;
	core_parallel(PARTS, count_run, context);
}

static void a_part_may_have_parts_of_its_own(void)
{
	memset(runs, 0, sizeof(runs));
	core_parallel(3, nested, NULL);
	for (unsigned int part = 0; part < PARTS; part++)
		CHECK_EQ(runs[part], 3);
}

static void *call_often(void *unused)
{
	for (int i = 0; i < 200; i++)
		core_parallel(PARTS, count_run, NULL);
	return unused;
}

static void callers_at_once_all_get_their_work_done(void)
{
	pthread_t callers[CALLERS];

	memset(runs, 0, sizeof(runs));
	for (int i = 0; i < CALLERS; i++)
		CHECK(!pthread_create(&callers[i], NULL, call_often, NULL));
	for (int i = 0; i < CALLERS; i++)
		pthread_join(callers[i], NULL);
	for (unsigned int part = 0; part < PARTS; part++)
		CHECK_EQ(runs[part], 200 * CALLERS);
}

static void count_late_run(void *context, unsigned int part)
{
	nanosleep(&(struct timespec){.tv_nsec = part ? 2000000 : 0}, NULL);
	count_run(context, part);
}

static void a_caller_waits_for_parts_that_take_longer_than_its_own(void)
{
	memset(runs, 0, sizeof(runs));
	core_parallel(4, count_late_run, NULL);
	for (unsigned int part = 0; part < 4; part++)
		CHECK_EQ(runs[part], 1);
}

static void a_forked_child_has_threads_of_its_own(void)
{
	int status;
	pid_t child;

	core_parallel(PARTS, count_run, NULL);
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		a_copy_by_threads_moves_its_bytes_and_no_others();
		_exit(0);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
}

CHECK_MAIN(TEST(a_copy_by_threads_moves_its_bytes_and_no_others), TEST(each_part_runs_once),
	   TEST(a_part_may_have_parts_of_its_own), TEST(callers_at_once_all_get_their_work_done),
	   TEST(a_caller_waits_for_parts_that_take_longer_than_its_own),
	   TEST(a_forked_child_has_threads_of_its_own))
