/* SPDX-License-Identifier: MIT */
/* The copy engine of the C core under sanitizers, on the simulated resource manager (preloaded). */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/private.h"
#include "preloaded.h"

#define BLOCK ((size_t)8 << 20)

static void fill(char *bytes, size_t nbytes, unsigned int seed)
{
	for (size_t i = 0; i < nbytes; i++)
		bytes[i] = (char)(i * 7 + (i >> 9) + seed);
}

static void check_copies(struct core_engine_memory *memory, uint64_t offset, size_t nbytes,
			 unsigned int seed)
{
	char *from = malloc(nbytes), *to = malloc(nbytes);
	struct core_error error;

	fill(from, nbytes, seed);
	CHECK_EQ(core_engine_transfer(memory, offset, from, nbytes, true, &error), 0);
	CHECK_EQ(core_engine_transfer(memory, offset, to, nbytes, false, &error), 0);
	CHECK_MEM_EQ(to, from, nbytes);
	free(from);
	free(to);
}

static void copies_are_exact_and_stay_inside(void)
{
	static const size_t sizes[] = {1, 3, 4097, 65536, 1048577, 5000000};
	struct core_error error;
	int fd = gpu_memory(BLOCK);
	char *zeros = calloc(1, BLOCK), *seen = mmap(NULL, BLOCK, PROT_READ, MAP_SHARED, fd, 0);
	struct core_engine_memory *memory = core_engine_take_export(fd, BLOCK, &error);

	CHECK(memory);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint64_t offset = 1001 * (i + 1);

		CHECK_EQ(core_engine_transfer(memory, 0, zeros, BLOCK, true, &error), 0);
		check_copies(memory, offset, sizes[i], 9);
		CHECK_EQ(seen[offset - 1], 0);
		CHECK_EQ(seen[offset], 9);
		CHECK_EQ(seen[offset + sizes[i]], 0);
	}
	free(zeros);
	core_engine_release(memory);
	munmap(seen, BLOCK);
	close(fd);
	CHECK_EQ(count("violations"), 0);
}

static void pieces_are_exact_in_any_order(void)
{
	enum {
		COUNT = 3000
	};
	static struct core_piece pieces[COUNT];
	struct core_error error;
	int fd = gpu_memory(BLOCK);
	char *seen = mmap(NULL, BLOCK, PROT_READ, MAP_SHARED, fd, 0);
	char *host = malloc(BLOCK);
	struct core_engine_memory *memory = core_engine_take_export(fd, BLOCK, &error);
	size_t at = 0;

	CHECK(memory);
	fill(host, BLOCK, 5);
	for (size_t i = 0; i < COUNT; i++) {
		size_t nbytes = i % 700 ? i % 1999 : i * 400, slot = i * 1777 % COUNT;

		/* The host's are in another order, and lie one after the other. */
		pieces[slot] = (struct core_piece){at, host + BLOCK - at - nbytes, nbytes};
		at += nbytes;
	}
	CHECK_EQ(core_engine_transfer_many(memory, pieces, COUNT, true, &error), 0);
	for (size_t i = 0; i < COUNT; i++) {
		CHECK_MEM_EQ(seen + pieces[i].offset, pieces[i].data, pieces[i].nbytes);
		memset(pieces[i].data, 0, pieces[i].nbytes);
	}
	CHECK_EQ(core_engine_transfer_many(memory, pieces, COUNT, false, &error), 0);
	for (size_t i = 0; i < COUNT; i++)
		CHECK_MEM_EQ(seen + pieces[i].offset, pieces[i].data, pieces[i].nbytes);
	CHECK_EQ(core_engine_transfer_many(memory, pieces, 0, false, &error), 0);
	free(host);
	core_engine_release(memory);
	munmap(seen, BLOCK);
	close(fd);
	CHECK_EQ(count("violations"), 0);
}

struct work {
	struct core_engine_memory *memory;
	unsigned int number;
};

static void *copy_again_and_again(void *argument)
{
	struct work *work = argument;

	for (unsigned int i = 0; i < 30; i++)
		check_copies(work->memory, ((uint64_t)work->number << 20) + i, 1 + i * 3001,
			     work->number + i);
	return NULL;
}

static void run_threads(struct core_engine_memory *memory)
{
	struct work works[6];
	pthread_t threads[6];

	for (unsigned int i = 0; i < 6; i++) {
		works[i] = (struct work){memory, i};
		CHECK_EQ(pthread_create(&threads[i], NULL, copy_again_and_again, &works[i]), 0);
	}
	for (unsigned int i = 0; i < 6; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
}

static void threads_share_an_engine(void)
{
	struct core_error error;
	int fd = gpu_memory(BLOCK);
	struct core_engine_memory *memory = core_engine_take_export(fd, BLOCK, &error);

	CHECK(memory);
	run_threads(memory);
	core_engine_release(memory);
	close(fd);
	CHECK_EQ(count("violations"), 0);
}

static void large_copies_leave_lanes_to_rows_and_small_ones(void)
{
	struct core_staging_lane *lanes[CORE_THREADS_MAX], *rows;
	struct core_error error;
	int fd = gpu_memory(BLOCK);
	struct core_engine_memory *memory = core_engine_take_export(fd, BLOCK, &error);

	CHECK(memory);
	for (int i = 0; i < CORE_THREADS_MAX; i++)
		CHECK(lanes[i] = core_lane_take(memory->engine, CORE_LANE_BULK, &error));
	CHECK(rows = core_lane_take(memory->engine, CORE_LANE_ROWS, &error));
	check_copies(memory, 5, 1, 3); /* would wait for ever */
	core_lane_give_back(memory->engine, rows);
	for (int i = 0; i < CORE_THREADS_MAX; i++)
		core_lane_give_back(memory->engine, lanes[i]);
	core_engine_release(memory);
	close(fd);
	CHECK_EQ(count("violations"), 0);
}

static void wait_for_job(struct core_queue *queue, uint64_t job)
{
	struct core_error error;
	uint64_t done = 0;

	while (done < job)
		CHECK_EQ(core_queue_progress(queue, &done, &error), 0);
}

/* A word, a copy to registered memory, and another word. */
static struct core_registration *
add_steps(struct core_queue *queue, struct core_engine_memory *memory, char *host, size_t nbytes)
{
	struct core_queue_step wait = {.kind = CORE_STEP_WAIT, .memory = memory, .value = 1};
	struct core_queue_step read = {.kind = CORE_STEP_READ,
				       .memory = memory,
				       .offset = 64,
				       .host = host,
				       .nbytes = nbytes};
	struct core_queue_step set = {
		.kind = CORE_STEP_SET, .memory = memory, .offset = 4, .value = 7};
	struct core_registration *registration, *none;
	struct core_error error;

	CHECK_EQ(core_queue_add(queue, &wait, &none, &error), 0);
	CHECK_EQ(core_queue_add(queue, &read, &registration, &error), 0);
	CHECK_EQ(core_queue_add(queue, &set, &none, &error), 0);
	CHECK(registration);
	return registration;
}

static void a_queue_waits_for_a_word_and_can_be_closed_before(void)
{
	const size_t nbytes = 10000;
	char *host = calloc(1, nbytes);
	struct core_error error;
	int fd = gpu_memory(BLOCK), objects;
	char *seen = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	struct core_engine_memory *memory = core_engine_take_export(fd, BLOCK, &error);
	struct core_registration *own = core_engine_register(host, nbytes, false, &error), *held;
	struct core_queue_step outside = {
		.kind = CORE_STEP_READ, .memory = memory, .host = seen, .nbytes = 1};
	struct core_queue *queue;
	uint64_t job, done;

	CHECK(memory);
	objects = count("objects");
	memset(seen + 64, 5, nbytes);
	for (int closed = 0; closed < 2; closed++) {
		CHECK(queue = core_queue_open(memory, &error));
		held = add_steps(queue, memory, host, nbytes);
		CHECK_EQ(core_queue_add(queue, &outside, &held, &error), 1);
		held = add_steps(queue, memory, host, nbytes);
		CHECK(core_queue_submit(queue, &job));
		CHECK_EQ(core_queue_progress(queue, &done, &error), 0);
		CHECK_EQ(done, 0);
		if (!closed) {
			__atomic_store_n((uint32_t *)seen, 1, __ATOMIC_RELEASE);
			wait_for_job(queue, job);
			CHECK_MEM_EQ(host, seen + 64, nbytes);
			CHECK_EQ(*(uint32_t *)(seen + 4), 7);
			__atomic_store_n((uint32_t *)seen, 0, __ATOMIC_RELEASE);
		}
		core_queue_close(queue);
		for (int i = 0; i < 2; i++)
			core_registration_let_go(held);
	}
	core_engine_unregister(own);
	CHECK_EQ(count("objects"), objects);
	core_engine_release(memory);
	munmap(seen, BLOCK);
	close(fd);
	free(host);
	CHECK_EQ(count("xids"), 0);
	CHECK_EQ(count("violations"), 0);
}

static void a_lost_channel_is_made_anew_under_threads(void)
{
	struct core_error error;
	int fd = gpu_memory(BLOCK);
	struct core_engine_memory *memory = core_engine_take_export(fd, BLOCK, &error);

	CHECK(memory);
	CHECK_EQ(set_fault("ENGINE:40:31"), 0);
	run_threads(memory);
	CHECK_EQ(count("xids"), 1);
	core_engine_release(memory);
	close(fd);
	CHECK_EQ(count("violations"), 0);
}

static void a_lost_engines_lanes_are_not_used_again(void)
{
	struct core_error error;
	int fd = gpu_memory(BLOCK);
	struct core_engine_memory *memory = core_engine_take_export(fd, BLOCK, &error);

	CHECK(memory);
	memory->engine->link->lost = true;
	CHECK(!core_lane_take(memory->engine, CORE_LANE_SMALL, &error));
	memory->engine->link->lost = false;
	check_copies(memory, 5, 1, 3);
	core_engine_release(memory);
	close(fd);
}

/* Have a thread copy while the engine does nothing for so many seconds. */
static pthread_t begin_slow_copy(struct work *work, const char *stall)
{
	pthread_t thread;

	CHECK_EQ(set_fault(stall), 0);
	CHECK_EQ(pthread_create(&thread, NULL, copy_again_and_again, work), 0);
	while (!count("stalls"))
		sched_yield();
	usleep(300000); /* until it waits */
	return thread;
}

static void an_engine_that_answered_while_the_process_was_stopped_is_not_lost(void)
{
	struct core_error error;
	int fd = gpu_memory(BLOCK);
	struct core_engine_memory *memory = core_engine_take_export(fd, BLOCK, &error);
	struct core_link *link;
	struct work work = {memory, 1};
	pthread_t thread;

	CHECK(memory);
	link = memory->engine->link;
	thread = begin_slow_copy(&work, "STALL:1:30");
	pass_time(61, true);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK(memory->engine->link == link);
	core_engine_release(memory);
	close(fd);
	CHECK_EQ(count("violations"), 0);
}

static void fill_ring(struct core_channel *channel, uint64_t va)
{
	const struct core_engine_piece piece = {.kind = CORE_PIECE_SET, .to = va, .value = 1};
	struct core_error error;
	uint32_t value;

	do
		CHECK_EQ(core_channel_submit(channel, &piece, 1, &value, &error), 0);
	while (value - *channel->semaphore < CORE_RING_ENTRIES - 1);
}

/* Each of them would wait for a minute, in turn, while it has the channel. */
static void an_engine_that_does_not_answer_is_lost_for_all_threads_at_once(void)
{
	struct core_error error;
	int fd = gpu_memory(BLOCK);
	struct core_engine_memory *memory = core_engine_take_export(fd, BLOCK, &error);
	struct work works[4];
	pthread_t threads[4];
	time_t began;

	CHECK(memory);
	memory->engine->rebuilt = false;
	for (unsigned int i = 0; i < 4; i++)
		works[i] = (struct work){memory, i};
	threads[0] = begin_slow_copy(&works[0], "STALL:1:1000");
	fill_ring(memory->engine->link->ready[CORE_CHANNEL_SMALL],
		  memory->parts[0].va + BLOCK - sizeof(uint32_t));
	for (unsigned int i = 1; i < 4; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, copy_again_and_again, &works[i]), 0);
	usleep(300000); /* until they wait */
	began = time(NULL);
	pass_time(61, false);
	for (unsigned int i = 0; i < 4; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
	CHECK(time(NULL) - began < 30);
	CHECK(memory->engine->rebuilt);
	core_engine_release(memory);
	close(fd);
	CHECK_EQ(count("violations"), 0);
}

static void a_second_loss_ends_it(void)
{
	struct core_error error;
	int fd = gpu_memory(BLOCK);
	struct core_engine_memory *memory = core_engine_take_export(fd, BLOCK, &error);
	char byte;

	CHECK(memory);
	CHECK_EQ(set_fault("ENGINE:1:79"), 0);
	CHECK_EQ(core_engine_transfer(memory, 0, &byte, 1, false, &error), -1);
	CHECK_EQ(error.failure, CORE_FAILED_UNAVAILABLE);
	CHECK(strstr(error.message, "Xid 79"));
	CHECK(!core_engine_take_export(fd, BLOCK, &error));
	CHECK(strstr(error.message, "Xid 79"));
	core_engine_release(memory);
	close(fd);
	CHECK_EQ(count("clients"), 0);
	CHECK_EQ(count("violations"), 0);
}

/* In this order: the engine is one for the whole process. */
CHECK_MAIN(TEST(copies_are_exact_and_stay_inside), TEST(pieces_are_exact_in_any_order),
	   TEST(threads_share_an_engine), TEST(large_copies_leave_lanes_to_rows_and_small_ones),
	   TEST(a_queue_waits_for_a_word_and_can_be_closed_before),
	   TEST(a_lost_channel_is_made_anew_under_threads),
	   TEST(a_lost_engines_lanes_are_not_used_again),
	   TEST(an_engine_that_answered_while_the_process_was_stopped_is_not_lost),
	   TEST(an_engine_that_does_not_answer_is_lost_for_all_threads_at_once),
	   TEST(a_second_loss_ends_it))
