/* SPDX-License-Identifier: MIT */
/* The ring of a channel, both ends of it, in memory that processes share. */
#include "channel/ring.h"
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#define CAPACITY 8
#define NBYTES 64
#define WORDS (NBYTES / 8)
#define MEMORY_PTR 0x700000000000ull
#define HOST_PTR 0x600000000000ull

static char *memory, *host;

struct record {
	uint64_t word[WORDS];
};

/* No two words of all records are the same. */
static struct record nth(uint64_t index)
{
	struct record record;

	for (int i = 0; i < WORDS; i++)
		record.word[i] = index * WORDS + (uint64_t)i;
	return record;
}

static struct core_ring new_ring_of(enum core_mapping_kind type)
{
	struct core_ring ring;

	if (!memory) {
		memory =
			mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		CHECK(memory != MAP_FAILED);
		host = memory + 4096;
	}
	memset(memory, 0xAA, 8192);
	core_ring_place(&ring, type, memory, host, NBYTES, CAPACITY);
	core_ring_begin(&ring, memory, MEMORY_PTR, HOST_PTR);
	return ring;
}

static struct core_ring new_ring(void)
{
	return new_ring_of(CORE_MAPPING_CACHED);
}

static void push_nth(struct core_ring_producer *producer, uint64_t first, uint64_t count)
{
	struct record records[2 * CAPACITY];

	for (uint64_t i = 0; i < count; i++)
		records[i] = nth(first + i);
	CHECK_EQ(core_ring_push(producer, (char *)records, count), count);
}

static void take_nth(struct core_ring_consumer *consumer, uint64_t first, uint64_t count)
{
	struct record found[CAPACITY];

	core_ring_take(consumer, (char *)found, count);
	for (uint64_t i = 0; i < count; i++) {
		struct record expected = nth(first + i);

		CHECK_MEM_EQ(&found[i], &expected, sizeof(expected));
	}
}

static void a_kernel_finds_everything_by_the_descriptor(void)
{
	const struct gdr_channel *channel;

	new_ring();
	channel = (const struct gdr_channel *)memory;
	CHECK_MEM_EQ(&channel->magic, "GDRCHANL", 8);
	CHECK_EQ(channel->version, 1);
	CHECK_EQ(channel->record_nbytes, NBYTES);
	CHECK_EQ(channel->capacity, CAPACITY);
	CHECK_EQ(channel->records, MEMORY_PTR + 256);
	CHECK_EQ(channel->tail, MEMORY_PTR + 128);
	CHECK_EQ(channel->closed, MEMORY_PTR + 136);
	CHECK_EQ(channel->head, HOST_PTR);
	CHECK_EQ(channel->stopped, HOST_PTR + 128);
}

static void check_order(enum core_mapping_kind type)
{
	struct core_ring_producer producer = {.ring = new_ring_of(type)};
	struct core_ring_consumer consumer = {.ring = producer.ring};
	uint64_t done = 0;

	for (uint64_t count = 1; count <= CAPACITY; count++) {
		for (int place = 0; place < CAPACITY; place++) {
			push_nth(&producer, done, count);
			CHECK_EQ(core_ring_ready(&consumer, CAPACITY), count);
			take_nth(&consumer, done, count);
			done += count;
			push_nth(&producer, done, 1);
			CHECK_EQ(core_ring_ready(&consumer, CAPACITY), 1);
			take_nth(&consumer, done++, 1);
		}
	}
	CHECK_EQ(*producer.ring.tail, done);
	CHECK_EQ(*producer.ring.head, done);
	for (char *beyond = memory + CORE_RING_RECORDS + CAPACITY * NBYTES; beyond < host; beyond++)
		CHECK_EQ(*beyond, (char)0xAA);
}

static void records_come_out_in_order_from_every_place_in_the_ring(void)
{
	check_order(CORE_MAPPING_CACHED);
	check_order(CORE_MAPPING_WC);
	check_order(CORE_MAPPING_DEVICE);
}

static void a_full_ring_takes_what_there_is_room_for(void)
{
	struct core_ring_producer producer = {.ring = new_ring()};
	struct core_ring_consumer consumer = {.ring = producer.ring};
	struct record records[CAPACITY + 3];

	for (uint64_t i = 0; i < CAPACITY + 3; i++)
		records[i] = nth(i);
	CHECK_EQ(core_ring_room(&producer), CAPACITY);
	CHECK_EQ(core_ring_push(&producer, (char *)records, CAPACITY + 3), CAPACITY);
	CHECK_EQ(core_ring_push(&producer, (char *)&records[CAPACITY], 3), 0);
	CHECK_EQ(core_ring_ready(&consumer, CAPACITY), CAPACITY);
	take_nth(&consumer, 0, 2);
	CHECK_EQ(core_ring_room(&producer), 2);
	CHECK_EQ(core_ring_push(&producer, (char *)&records[CAPACITY], 3), 2);
	take_nth(&consumer, 2, CAPACITY - 2);
	CHECK_EQ(core_ring_ready(&consumer, CAPACITY), 2);
	take_nth(&consumer, CAPACITY, 2);
}

static void counters_go_on_beyond_32_bits(void)
{
	const uint64_t start = (1ull << 32) - 3;
	struct core_ring_producer producer = {.ring = new_ring(), .head = start, .tail = start};
	struct core_ring_consumer consumer = {.ring = producer.ring};

	*producer.ring.head = *producer.ring.tail = start;
	core_ring_consumer_begin(&consumer);
	CHECK_EQ(core_ring_ready(&consumer, CAPACITY), 0);
	for (uint64_t i = start; i < start + 10; i++) {
		push_nth(&producer, i, 1);
		CHECK_EQ(core_ring_ready(&consumer, CAPACITY), 1);
		take_nth(&consumer, i, 1);
	}
	CHECK_EQ(*producer.ring.head, start + 10);
}

static void a_second_consumer_goes_on_where_the_first_has_left_off(void)
{
	struct core_ring_producer producer = {.ring = new_ring()};
	struct core_ring_consumer first = {.ring = producer.ring}, second = first;

	push_nth(&producer, 0, 5);
	CHECK_EQ(core_ring_ready(&first, CAPACITY), 5);
	take_nth(&first, 0, 2);
	core_ring_consumer_begin(&second);
	CHECK_EQ(core_ring_ready(&second, CAPACITY), 3);
	take_nth(&second, 2, 3);
}

static void the_end_comes_after_the_last_record(void)
{
	struct core_ring_producer producer = {.ring = new_ring()};
	struct core_ring_consumer consumer = {.ring = producer.ring};

	CHECK(!core_ring_ended(&consumer));
	push_nth(&producer, 0, 1);
	core_ring_set_closed(&producer.ring, true);
	CHECK(!core_ring_ended(&consumer));
	take_nth(&consumer, 0, 1);
	CHECK(core_ring_ended(&consumer));
}

static void a_consumer_that_stops_is_noticed(void)
{
	struct core_ring ring = new_ring();

	CHECK(!core_ring_stopped(&ring));
	core_ring_set_stopped(&ring, true);
	CHECK(core_ring_stopped(&ring));
}

static void a_counter_that_no_consumer_gives_makes_no_room(void)
{
	const uint64_t wrong[] = {0, 6, CAPACITY + 6, UINT64_MAX};

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct core_ring_producer producer = {.ring = new_ring(), .head = 1, .tail = 5};

		*producer.ring.head = wrong[i];
		CHECK_EQ(core_ring_room(&producer), 0);
		CHECK(producer.broken);
		*producer.ring.head = 5;
		CHECK_EQ(core_ring_room(&producer), 0);
	}
}

static void a_counter_that_no_producer_gives_makes_no_records(void)
{
	const uint64_t wrong[] = {0, 2, CAPACITY + 2, UINT64_MAX};

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct core_ring_consumer consumer = {.ring = new_ring(), .head = 1, .tail = 3};

		*consumer.ring.tail = wrong[i];
		core_ring_set_closed(&consumer.ring, true);
		CHECK_EQ(core_ring_ready(&consumer, CAPACITY), 0);
		CHECK(consumer.broken);
		CHECK(!core_ring_ended(&consumer));
		*consumer.ring.tail = 3;
		CHECK_EQ(core_ring_ready(&consumer, 1), 0);
	}
}

#define THREADED 200000

static void *take_all(void *context)
{
	struct core_ring_consumer consumer = {.ring = *(struct core_ring *)context};
	uint64_t done = 0;

	core_ring_consumer_begin(&consumer);
	while (!core_ring_ended(&consumer)) {
		uint64_t count = core_ring_ready(&consumer, CAPACITY);

		if (!count) {
			sched_yield();
			continue;
		}
		take_nth(&consumer, done, count);
		done += count;
	}
	CHECK_EQ(done, THREADED);
	return NULL;
}

static void two_threads_pass_every_record_whole(void)
{
	struct core_ring_producer producer = {.ring = new_ring()};
	struct record records[CAPACITY];
	pthread_t thread;
	uint64_t done = 0;

	CHECK_EQ(pthread_create(&thread, NULL, take_all, &producer.ring), 0);
	while (done < THREADED) {
		uint64_t count = 1 + done % CAPACITY;
		uint64_t pushed;

		if (count > THREADED - done)
			count = THREADED - done;
		for (uint64_t i = 0; i < count; i++)
			records[i] = nth(done + i);
		pushed = core_ring_push(&producer, (char *)records, count);
		if (!pushed)
			sched_yield();
		done += pushed;
	}
	core_ring_set_closed(&producer.ring, true);
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

/* Run `work` in a child until it is killed, some 0.1 to 1 ms after it began. */
static void run_and_kill(void (*work)(struct core_ring *), struct core_ring *ring)
{
	struct timespec pause = {.tv_nsec = 100000 + rand() % 900000};
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0)
		for (;;)
			work(ring);
	nanosleep(&pause, NULL);
	CHECK_EQ(kill(child, SIGKILL), 0);
	CHECK_EQ(waitpid(child, NULL, 0), child);
}

static void push_for_ever(struct core_ring *ring)
{
	struct core_ring_producer producer = {
		.ring = *ring, .head = *ring->head, .tail = *ring->tail};

	for (;;) {
		struct record record = nth(producer.tail);

		if (core_ring_push(&producer, (char *)&record, 1))
			*ring->head = producer.tail - 1; /* and be the consumer too */
	}
}

static void a_killed_producer_leaves_whole_records(void)
{
	struct core_ring ring = new_ring();
	uint64_t before = 0;

	for (int i = 0; i < 50; i++) {
		struct core_ring_consumer consumer = {.ring = ring};

		run_and_kill(push_for_ever, &ring);
		core_ring_consumer_begin(&consumer);
		CHECK(consumer.head >= before);
		before = consumer.head;
		take_nth(&consumer, consumer.head, core_ring_ready(&consumer, CAPACITY));
	}
}

static void take_for_ever(struct core_ring *ring)
{
	struct core_ring_consumer consumer = {.ring = *ring};

	core_ring_consumer_begin(&consumer);
	for (;;) {
		uint64_t count = core_ring_ready(&consumer, CAPACITY);

		if (count)
			take_nth(&consumer, consumer.head, count);
	}
}

static void *push_slowly(void *context)
{
	struct core_ring_producer *producer = context;

	while (producer->tail < THREADED) {
		struct record record = nth(producer->tail);

		if (!core_ring_push(producer, (char *)&record, 1))
			sched_yield();
	}
	return NULL;
}

static void a_killed_consumer_loses_nothing_that_it_gave_no_credit_for(void)
{
	struct core_ring_producer producer = {.ring = new_ring()};
	pthread_t thread;

	CHECK_EQ(pthread_create(&thread, NULL, push_slowly, &producer), 0);
	for (int i = 0; i < 20; i++)
		run_and_kill(take_for_ever, &producer.ring);
	while (__atomic_load_n(producer.ring.head, __ATOMIC_ACQUIRE) < THREADED) {
		struct core_ring_consumer consumer = {.ring = producer.ring};

		core_ring_consumer_begin(&consumer);
		take_nth(&consumer, consumer.head, core_ring_ready(&consumer, CAPACITY));
	}
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK(!producer.broken);
}

CHECK_MAIN(TEST(a_kernel_finds_everything_by_the_descriptor),
	   TEST(records_come_out_in_order_from_every_place_in_the_ring),
	   TEST(a_full_ring_takes_what_there_is_room_for), TEST(counters_go_on_beyond_32_bits),
	   TEST(a_second_consumer_goes_on_where_the_first_has_left_off),
	   TEST(the_end_comes_after_the_last_record), TEST(a_consumer_that_stops_is_noticed),
	   TEST(a_counter_that_no_consumer_gives_makes_no_room),
	   TEST(a_counter_that_no_producer_gives_makes_no_records),
	   TEST(two_threads_pass_every_record_whole), TEST(a_killed_producer_leaves_whole_records),
	   TEST(a_killed_consumer_loses_nothing_that_it_gave_no_credit_for))
