/* SPDX-License-Identifier: MIT */
/* Sixteen threads at once, on one library object and on several: nobody needs a lock around it. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "rig.h"

#define THREADS 16
#define ROUNDS 40

struct worker {
	pthread_t thread;
	int number;
	gdr_t gdr;	     /* NULL: of its own */
	CUdeviceptr pointer; /* memory that no other thread uses */
	struct view *shared;
	atomic_int *count; /* of what the test counts */
};

static void run(struct worker *workers, void *(*work)(void *))
{
	for (int i = 0; i < THREADS; i++) {
		workers[i].number = i;
		CHECK_EQ(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
	}
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_join(workers[i].thread, NULL), 0);
}

static void begin_thread(void)
{
	CUcontext context;

	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
}

static void end_thread(void)
{
	OK(cuDevicePrimaryCtxRelease_v2(0));
}

static void *pin_map_copy_unmap_unpin(void *argument)
{
	struct worker *worker = argument;
	gdr_t gdr = worker->gdr ? worker->gdr : opened();
	unsigned char mine[5000], seen[5000];

	begin_thread();
	for (int round = 0; round < ROUNDS; round++) {
		struct view view = viewed(gdr, worker->pointer + worker->number, 5000);

		memset(mine, worker->number * 16 + round, sizeof(mine));
		CHECK_EQ(gdr_copy_to_mapping(view.handle, view.bytes, mine, sizeof(mine)), 0);
		gpu_read(worker->pointer + worker->number, seen, sizeof(seen));
		CHECK_MEM_EQ(seen, mine, sizeof(seen));
		memset(seen, 0, sizeof(seen));
		CHECK_EQ(gdr_copy_from_mapping(view.handle, seen, view.bytes, sizeof(seen)), 0);
		CHECK_MEM_EQ(seen, mine, sizeof(seen));
		CHECK_EQ(info_of(gdr, view.handle).mapped, 1);
		if (round % 3)
			close_view(&view);
		else
			CHECK_EQ(gdr_unpin_buffer(gdr, view.handle), 0);
	}
	if (!worker->gdr)
		CHECK_EQ(gdr_close(gdr), 0);
	end_thread();
	return NULL;
}

static void each_on_memory_of_its_own(gdr_t gdr)
{
	struct worker workers[THREADS];

	for (int i = 0; i < THREADS; i++)
		workers[i] = (struct worker){.gdr = gdr, .pointer = allocate(100000)};
	run(workers, pin_map_copy_unmap_unpin);
	for (int i = 0; i < THREADS; i++)
		OK(cuMemFree_v2(workers[i].pointer));
}

static void threads_pin_and_copy_through_one_library_object(void)
{
	gdr_t gdr = opened();

	each_on_memory_of_its_own(gdr);
	CHECK_EQ(gdr_close(gdr), 0);
}

static void threads_pin_and_copy_through_one_each(void)
{
	each_on_memory_of_its_own(NULL);
}

static void *copy_through_the_shared_view(void *argument)
{
	struct worker *worker = argument;
	struct view *view = worker->shared;
	unsigned char *at = view->bytes + worker->number * 8192;
	unsigned char mine[8192], seen[8192];

	for (int round = 0; round < ROUNDS; round++) {
		gdr_info_v2_t info = info_of(view->gdr, view->handle);

		memset(mine, worker->number + round, sizeof(mine));
		CHECK_EQ(gdr_copy_to_mapping(view->handle, at, mine, sizeof(mine)), 0);
		CHECK_EQ(gdr_copy_from_mapping(view->handle, seen, at, sizeof(seen)), 0);
		CHECK_MEM_EQ(seen, mine, sizeof(seen));
		CHECK_EQ(info.mapped, 1);
	}
	return NULL;
}

static void threads_copy_through_one_mapping(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	struct view view = viewed(gdr, pointer, GRANULE);
	struct worker workers[THREADS];

	for (int i = 0; i < THREADS; i++)
		workers[i] = (struct worker){.shared = &view};
	run(workers, copy_through_the_shared_view);
	close_view(&view);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

/* Half of the threads copy; the others pin and unpin, so that the table of handles is rebuilt. */
static void *copy_or_pin(void *argument)
{
	struct worker *worker = argument;

	return worker->number % 2 ? pin_map_copy_unmap_unpin(worker)
				  : copy_through_the_shared_view(worker);
}

static void threads_copy_while_others_pin(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	struct view view = viewed(gdr, pointer, GRANULE);
	struct worker workers[THREADS];

	for (int i = 0; i < THREADS; i++)
		workers[i] =
			(struct worker){.gdr = gdr, .shared = &view, .pointer = allocate(100000)};
	run(workers, copy_or_pin);
	for (int i = 0; i < THREADS; i++)
		OK(cuMemFree_v2(workers[i].pointer));
	close_view(&view);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void *map_what_all_map(void *argument)
{
	struct worker *worker = argument;
	struct view *view = worker->shared;

	for (int round = 0; round < ROUNDS; round++) {
		void *va;
		int error = gdr_map(view->gdr, view->handle, &va, view->size);

		if (error) {
			CHECK_EQ(error, EAGAIN);
			continue;
		}
		CHECK_EQ(atomic_fetch_add(worker->count, 1), 0);
		CHECK_EQ(gdr_copy_to_mapping(view->handle, va, &round, sizeof(round)), 0);
		atomic_fetch_sub(worker->count, 1);
		CHECK_EQ(gdr_unmap(view->gdr, view->handle, va, view->size), 0);
	}
	return NULL;
}

static void of_threads_that_map_one_pin_one_succeeds(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	struct view view = {.gdr = gdr, .handle = pinned(gdr, pointer, GRANULE), .size = GRANULE};
	struct worker workers[THREADS];
	atomic_int mapped = 0;

	for (int i = 0; i < THREADS; i++)
		workers[i] = (struct worker){.shared = &view, .count = &mapped};
	run(workers, map_what_all_map);
	CHECK_EQ(info_of(gdr, view.handle).mapped, 0);
	CHECK_EQ(gdr_unpin_buffer(gdr, view.handle), 0);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void *unpin_what_all_unpin(void *argument)
{
	struct worker *worker = argument;
	struct view *view = worker->shared;
	int error = gdr_unpin_buffer(view->gdr, view->handle);

	if (error)
		CHECK_EQ(error, EINVAL);
	else
		atomic_fetch_add(worker->count, 1);
	return NULL;
}

static void of_threads_that_unpin_one_pin_one_succeeds(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();

	for (int round = 0; round < 10; round++) {
		struct view view = viewed(gdr, pointer, GRANULE);
		struct worker workers[THREADS];
		atomic_int unpinned = 0;

		for (int i = 0; i < THREADS; i++)
			workers[i] = (struct worker){.shared = &view, .count = &unpinned};
		run(workers, unpin_what_all_unpin);
		CHECK_EQ(atomic_load(&unpinned), 1);
	}
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

/* The first pin is left to be ended by the closing. */
static void *pin_until_it_is_closed(void *argument)
{
	struct worker *worker = argument;
	gdr_mh_t handle = pinned(worker->gdr, worker->pointer, 1);
	int error;

	atomic_fetch_add(worker->count, 1);
	do {
		error = gdr_pin_buffer(worker->gdr, worker->pointer, 1, 0, 0, &handle);
		if (!error)
			error = gdr_unpin_buffer(worker->gdr, handle);
	} while (!error);
	CHECK_EQ(error, EINVAL);
	return NULL;
}

/* Once every other thread has pinned. */
static void *close_meanwhile(void *argument)
{
	struct worker *worker = argument;

	while (atomic_load(worker->count) < THREADS - 1)
		sched_yield();
	CHECK_EQ(gdr_close(worker->gdr), 0);
	return NULL;
}

static void *pin_or_close(void *argument)
{
	struct worker *worker = argument;

	return worker->number ? pin_until_it_is_closed(worker) : close_meanwhile(worker);
}

static void closing_waits_for_calls_and_refuses_later_ones(void)
{
	CUdeviceptr pointer = allocate(GRANULE);

	for (int round = 0; round < 5; round++) {
		gdr_t gdr = opened();
		struct worker workers[THREADS];
		atomic_int pins = 0;

		for (int i = 0; i < THREADS; i++)
			workers[i] =
				(struct worker){.gdr = gdr, .pointer = pointer, .count = &pins};
		run(workers, pin_or_close);
	}
	OK(cuMemFree_v2(pointer));
}

/* No thread has a current context of CUDA's: the library finds the memory's own. */
static void *pin_without_a_context(void *argument)
{
	struct worker *worker = argument;
	struct view view = viewed(worker->gdr, worker->pointer, 5000);
	CUcontext current = (CUcontext)1;

	CHECK_EQ(gdr_copy_to_mapping(view.handle, view.bytes, &worker->number, 4), 0);
	close_view(&view);
	OK(cuCtxGetCurrent(&current));
	CHECK(!current);
	return NULL;
}

static void threads_need_no_current_context(void)
{
	gdr_t gdr = opened();
	struct worker workers[THREADS];
	int seen;

	for (int i = 0; i < THREADS; i++)
		workers[i] = (struct worker){.gdr = gdr, .pointer = allocate(100000)};
	run(workers, pin_without_a_context);
	for (int i = 0; i < THREADS; i++) {
		gpu_read(workers[i].pointer, &seen, 4);
		CHECK_EQ(seen, i);
		OK(cuMemFree_v2(workers[i].pointer));
	}
	CHECK_EQ(gdr_close(gdr), 0);
}

RIG_MAIN(TEST(threads_pin_and_copy_through_one_library_object),
	 TEST(threads_pin_and_copy_through_one_each), TEST(threads_copy_through_one_mapping),
	 TEST(threads_copy_while_others_pin), TEST(of_threads_that_map_one_pin_one_succeeds),
	 TEST(of_threads_that_unpin_one_pin_one_succeeds),
	 TEST(closing_waits_for_calls_and_refuses_later_ones),
	 TEST(threads_need_no_current_context))
