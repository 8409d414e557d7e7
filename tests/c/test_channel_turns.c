/* SPDX-License-Identifier: MIT */
/* Several producers at one ring, threads and processes, of which some are killed in their turns. */
#include "channel/turns.h"
#include "check.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#define CAPACITY 8
#define NBYTES 64
#define WORDS (NBYTES / 8)
#define PRODUCERS 4
#define EACH 20000
#if defined(__SANITIZE_THREAD__) /* whose processes take a second to fork and to end */
#define KILLS 5
#else
#define KILLS 200
#endif

static char *memory, *host;

struct record {
	uint64_t word[WORDS];
};

/* Record `index` of a producer: no two words of all are the same. */
static struct record made(uint64_t producer, uint64_t index)
{
	struct record record = {{producer, index}};

	for (uint64_t i = 2; i < WORDS; i++)
		record.word[i] = ((producer << 40 | index) * WORDS + i) * 0x9E3779B97F4A7C15ull;
	return record;
}

static void check_whole(const struct record *record)
{
	struct record expected = made(record->word[0], record->word[1]);

	CHECK_MEM_EQ(record, &expected, sizeof(expected));
}

static struct core_ring new_ring(void)
{
	struct core_ring ring;

	if (!memory) {
		memory =
			mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		CHECK(memory != MAP_FAILED);
		host = memory + 4096;
	}
	memset(memory, 0, 8192);
	core_ring_place(&ring, CORE_MAPPING_CACHED, memory, host, NBYTES, CAPACITY);
	return ring;
}

struct producer {
	struct core_ring_producer end;
	struct core_turns turns;
	pthread_t thread;
};

static struct producer joined(const struct core_ring *ring, uint64_t number)
{
	struct producer producer = {.end.ring = *ring};

	core_turns_join(&producer.turns, &producer.end, host, number);
	return producer;
}

static uint64_t push(struct producer *producer, uint64_t index)
{
	struct record record = made(producer->turns.number, index);

	return core_turns_push(&producer->turns, &producer->end, (char *)&record, 1);
}

static void take(struct core_ring_consumer *consumer, uint64_t producer, uint64_t index)
{
	struct record found, expected = made(producer, index);

	CHECK(core_ring_ready(consumer, 1) > 0);
	core_ring_take(consumer, (char *)&found, 1);
	CHECK_MEM_EQ(&found, &expected, sizeof(expected));
}

static void each_goes_on_where_the_others_are(void)
{
	struct core_ring ring = new_ring();
	struct core_ring_consumer consumer = {.ring = ring};
	struct producer one = joined(&ring, 1), two = joined(&ring, 2);

	for (uint64_t i = 0; i < 5 * CAPACITY; i++) {
		CHECK_EQ(push(&one, i), 1);
		CHECK_EQ(push(&two, i), 1);
		CHECK_EQ(core_turns_pushed(&one.turns, &one.end.ring), 2 * i + 2);
		take(&consumer, 1, i);
		take(&consumer, 2, i);
	}
	CHECK_EQ(core_turns_holder(&one.turns), CORE_TURN_FREE);
	CHECK(!one.end.broken && !two.end.broken);
}

static void a_full_ring_is_full_for_all(void)
{
	struct core_ring ring = new_ring();
	struct core_ring_consumer consumer = {.ring = ring};
	struct producer one = joined(&ring, 1), two = joined(&ring, 2);

	for (uint64_t i = 0; i < CAPACITY; i++)
		CHECK_EQ(push(&one, i), 1);
	CHECK_EQ(push(&two, 0), 0);
	CHECK(!core_turns_may_push(&two.turns, &ring));
	CHECK(!two.end.broken);
	take(&consumer, 1, 0);
	CHECK(core_turns_may_push(&two.turns, &ring));
	CHECK_EQ(push(&two, 0), 1);
	CHECK_EQ(push(&one, CAPACITY), 0);
}

static void nothing_is_pushed_in_the_turn_of_another(void)
{
	struct core_ring ring = new_ring();
	struct producer one = joined(&ring, 1), two = joined(&ring, 2);

	*one.turns.holder = 2;
	CHECK_EQ(push(&one, 0), 0);
	CHECK(core_turns_taken(&one.turns) && !core_turns_taken(&two.turns));
	CHECK(!core_turns_may_push(&one.turns, &ring));
	core_turns_free(&one.turns, 3); /* which has no turn */
	CHECK_EQ(core_turns_holder(&one.turns), 2);
	core_turns_free(&one.turns, 2);
	CHECK_EQ(core_turns_holder(&one.turns), CORE_TURN_FREE);
	CHECK_EQ(push(&one, 0), 1);
	CHECK_EQ(*one.turns.holder, CORE_TURN_FREE);
}

static void a_turn_that_was_left_is_followed_from_the_tail(void)
{
	struct core_ring ring = new_ring();
	struct core_ring_consumer consumer = {.ring = ring};
	struct producer one = joined(&ring, 1), two = joined(&ring, 2);

	CHECK_EQ(push(&one, 0), 1);
	*one.turns.pushed = 0; /* as if it had died before it told */
	*one.turns.holder = 1;
	core_turns_free(&two.turns, 1);
	CHECK_EQ(push(&two, 0), 1);
	CHECK_EQ(core_turns_pushed(&two.turns, &two.end.ring), 2);
	take(&consumer, 1, 0);
	take(&consumer, 2, 0);
}

static void a_turn_that_was_ended_meanwhile_is_noticed(void)
{
	struct core_ring ring = new_ring();
	struct producer one = joined(&ring, 1);

	*one.turns.holder = 1; /* as if another had stored it */
	CHECK_EQ(push(&one, 0), 0);
	CHECK(one.end.broken);
}

static void a_count_that_no_producer_stores_pushes_nothing(void)
{
	const uint64_t wrong[] = {CAPACITY + 1, 1ull << 63, UINT64_MAX};

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct core_ring ring = new_ring();
		struct producer one = joined(&ring, 1), two = joined(&ring, 2);

		*one.turns.pushed = wrong[i];
		CHECK(core_turns_may_push(&one.turns, &ring));
		CHECK_EQ(push(&one, 0), 0);
		CHECK(one.end.broken);
		CHECK_EQ(push(&two, 0), 1); /* from the tail */
		CHECK(!two.end.broken);
	}
}

static void *push_all(void *context)
{
	struct producer *self = context;

	for (uint64_t i = 0; i < EACH;) {
		if (push(self, i))
			i++;
		else
			sched_yield();
	}
	return NULL;
}

static void threads_pass_every_record_whole_and_in_their_order(void)
{
	struct core_ring ring = new_ring();
	struct core_ring_consumer consumer = {.ring = ring};
	struct producer producers[PRODUCERS];
	uint64_t next[PRODUCERS + 1] = {0}, done = 0;

	for (uint64_t i = 0; i < PRODUCERS; i++) {
		producers[i] = joined(&ring, i + 1);
		CHECK_EQ(pthread_create(&producers[i].thread, NULL, push_all, &producers[i]), 0);
	}
	while (done < PRODUCERS * EACH) {
		struct record found;

		if (!core_ring_ready(&consumer, 1)) {
			sched_yield();
			continue;
		}
		core_ring_take(&consumer, (char *)&found, 1);
		check_whole(&found);
		CHECK_EQ(found.word[1], next[found.word[0]]++);
		done++;
	}
	for (int i = 0; i < PRODUCERS; i++)
		CHECK_EQ(pthread_join(producers[i].thread, NULL), 0);
	CHECK(!consumer.broken);
}

static pid_t start(const struct core_ring *ring, uint64_t number)
{
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0) {
		struct producer self = joined(ring, number);

		for (uint64_t i = 0;;) {
			if (push(&self, i))
				i++;
			else
				sched_yield();
			if (self.end.broken)
				_exit(1);
		}
	}
	return child;
}

static void processes_that_are_killed_leave_neither_parts_nor_holes(void)
{
	struct core_ring ring = new_ring();
	struct core_ring_consumer consumer = {.ring = ring};
	struct producer watcher = joined(&ring, UINT64_MAX - 1);
	static uint64_t next[2 * KILLS + 1];
	pid_t children[2] = {start(&ring, 1), start(&ring, 2)};
	uint64_t numbers[2] = {1, 2}, born = 2;

	while (born < 2 * KILLS) {
		struct timespec pause = {.tv_nsec = rand() % 300000};
		int which = rand() % 2, status;
		struct record found;

		nanosleep(&pause, NULL);
		for (int i = rand() % 50; i > 0; i--) {
			if (!core_ring_ready(&consumer, 1))
				continue;
			core_ring_take(&consumer, (char *)&found, 1);
			check_whole(&found);
			CHECK_EQ(found.word[1], next[found.word[0]]++);
		}
		CHECK_EQ(kill(children[which], SIGKILL), 0);
		CHECK_EQ(waitpid(children[which], &status, 0), children[which]);
		CHECK(WIFSIGNALED(status)); /* else it found the ring broken */
		core_turns_free(&watcher.turns, numbers[which]);
		numbers[which] = ++born;
		children[which] = start(&ring, born);
	}
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(kill(children[i], SIGKILL), 0);
		CHECK_EQ(waitpid(children[i], NULL, 0), children[i]);
		core_turns_free(&watcher.turns, numbers[i]);
	}
	while (core_ring_ready(&consumer, 1)) {
		struct record found;

		core_ring_take(&consumer, (char *)&found, 1);
		check_whole(&found);
		CHECK_EQ(found.word[1], next[found.word[0]]++);
	}
	CHECK(!consumer.broken);
	CHECK_EQ(push(&watcher, 0), 1);
}

CHECK_MAIN(TEST(each_goes_on_where_the_others_are), TEST(a_full_ring_is_full_for_all),
	   TEST(nothing_is_pushed_in_the_turn_of_another),
	   TEST(a_turn_that_was_left_is_followed_from_the_tail),
	   TEST(a_turn_that_was_ended_meanwhile_is_noticed),
	   TEST(a_count_that_no_producer_stores_pushes_nothing),
	   TEST(threads_pass_every_record_whole_and_in_their_order),
	   TEST(processes_that_are_killed_leave_neither_parts_nor_holes))
