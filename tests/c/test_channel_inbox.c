/* SPDX-License-Identifier: MIT */
/*
 * An inbox, both ends of it. The kernel's end is the code that kernels run, compiled for the CPU:
 * threads and processes stand in for the threads of kernels. Many of them make this the litmus test
 * of docs/channel-protocol.md, by ThreadSanitizer and on arm64 too.
 */
#define _GNU_SOURCE /* REG_EFL */

#include "channel/inbox.h"
#include "check.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>

#define CAPACITY 8
#define NBYTES 64
#define WORDS (NBYTES / 8)

/* The memory of an inbox, as its processes share it. */
static struct memory {
	unsigned long long reserved, taken, end, head;
	_Alignas(16) char slots[2 * CAPACITY * NBYTES];
	char beyond[64];
} *memory;

struct record {
	uint64_t word[WORDS];
};

/* Of producer `from`, its record number `index`: no two words of all are the same. */
static struct record made(uint64_t from, uint64_t index)
{
	struct record record = {{from, index}};

	for (uint64_t i = 2; i < WORDS; i++)
		record.word[i] = ((from << 40 | index) * WORDS + i) * 0x9E3779B97F4A7C15ull;
	return record;
}

static void check_whole(const struct record *record)
{
	struct record expected = made(record->word[0], record->word[1]);

	CHECK_MEM_EQ(record, &expected, sizeof(expected));
}

static struct gdr_inbox new_inbox(void)
{
	if (!memory)
		memory = mmap(NULL, sizeof(*memory), PROT_READ | PROT_WRITE,
			      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	memset(memory, 0, sizeof(*memory));
	memset(memory->beyond, 0xAA, sizeof(memory->beyond));
	return (struct gdr_inbox){
		.magic = GDR_INBOX_MAGIC,
		.version = GDR_INBOX_VERSION,
		.slots = {(uintptr_t)memory->slots, CAPACITY, NBYTES},
		.reserved = (uintptr_t)&memory->reserved,
		.taken = (uintptr_t)&memory->taken,
		.end = (uintptr_t)&memory->end,
	};
}

static struct gdr_inbox_reader new_reader(const struct gdr_inbox *inbox)
{
	struct gdr_inbox_reader reader = {
		.slots = inbox->slots,
		.taken = &memory->taken,
		.end = &memory->end,
		.head = &memory->head,
	};

	gdr_inbox_begin(&reader);
	return reader;
}

static void put(const struct gdr_inbox *inbox, uint64_t number, struct record record)
{
	gdr_slot_put(&inbox->slots, number, (const char *)&record);
}

static void push(const struct gdr_inbox *inbox, uint64_t from, uint64_t index)
{
	unsigned long long taken = 0, number = gdr_inbox_reserve(inbox, 1);

	CHECK_EQ(gdr_inbox_free(inbox, number, &taken), 1);
	put(inbox, number, made(from, index));
}

static void pop(struct gdr_inbox_reader *reader, uint64_t from, uint64_t index)
{
	struct record found, expected = made(from, index);

	CHECK_EQ(gdr_inbox_pop(reader, &found, 1), 1);
	CHECK_MEM_EQ(&found, &expected, sizeof(expected));
}

static void kernels_in_other_languages_find_the_fields_at_their_offsets(void)
{
	CHECK_EQ(sizeof(struct gdr_inbox), 64);
	CHECK_EQ(offsetof(struct gdr_inbox, slots.address), 16);
	CHECK_EQ(offsetof(struct gdr_inbox, slots.capacity), 24);
	CHECK_EQ(offsetof(struct gdr_inbox, slots.record_nbytes), 32);
	CHECK_EQ(offsetof(struct gdr_inbox, reserved), 40);
	CHECK_EQ(offsetof(struct gdr_inbox, taken), 48);
	CHECK_EQ(offsetof(struct gdr_inbox, end), 56);
	CHECK_MEM_EQ(&(unsigned long long){GDR_INBOX_MAGIC}, "GDRINBOX", 8);
}

static void records_come_out_in_order_from_every_place_in_the_ring(void)
{
	struct gdr_inbox inbox = new_inbox();
	struct gdr_inbox_reader reader = new_reader(&inbox);
	struct record found[CAPACITY + 1];
	uint64_t done = 0;

	for (uint64_t count = 1; count <= CAPACITY; count++) {
		for (int place = 0; place <= CAPACITY; place++) {
			for (uint64_t i = 0; i < count; i++)
				push(&inbox, 1, done + i);
			CHECK_EQ(gdr_inbox_ready(&reader, CAPACITY + 1), count);
			CHECK_EQ(gdr_inbox_pop(&reader, found, CAPACITY + 1), count);
			for (uint64_t i = 0; i < count; i++) {
				check_whole(&found[i]);
				CHECK_EQ(found[i].word[1], done + i);
			}
			done += count;
		}
	}
	CHECK_EQ(memory->reserved, done);
	CHECK_EQ(memory->head, done);
	for (size_t i = 0; i < sizeof(memory->beyond); i++)
		CHECK_EQ(memory->beyond[i], (char)0xAA);
}

static void a_record_is_ready_when_its_last_word_has_arrived_whichever_that_is(void)
{
	struct gdr_inbox inbox = new_inbox();
	struct gdr_inbox_reader reader = new_reader(&inbox);
	struct record found;

	for (uint64_t number = 0; number < 2 * NBYTES / 4; number++) {
		char *slot = memory->slots + number % CAPACITY * 2 * NBYTES;
		uint64_t before[2 * WORDS], missing = number % (2 * WORDS), *word;

		memcpy(before, slot, sizeof(before));
		push(&inbox, 2, number);
		word = (uint64_t *)slot + missing;
		memcpy(&found, word, sizeof(*word));
		*word = before[missing];
		CHECK_EQ(gdr_inbox_ready(&reader, 1), 0);
		CHECK_EQ(gdr_inbox_pop(&reader, &found, 1), 0);
		put(&inbox, number, made(2, number));
		pop(&reader, 2, number);
	}
}

#if defined(GDR_SLOT_SSE2)
#define TRAP_FLAG 0x100 /* in EFLAGS: trap after the next instruction */

/* The word that is stored after some instructions of a look for its record. */
static struct {
	uint64_t *word, value;
	int after, done;
} storing;

/* After an int3, which begins and ends the steps, and after each instruction between two. */
static void store_between(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	if (info->si_code != TRAP_TRACE)
		((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] ^= TRAP_FLAG;
	else if (storing.done++ == storing.after)
		*storing.word = storing.value;
}

/* Called by its address, it is compiled for any arguments. */
static int (*volatile look)(const struct gdr_slots *slots, unsigned long long number,
			    char *record) = gdr_slot_get;

static void a_record_is_whole_whichever_instructions_its_last_word_comes_between(void)
{
	struct sigaction trap = {.sa_sigaction = store_between, .sa_flags = SA_SIGINFO}, before;
	static const unsigned int expected[4] = {1, 2, 3, 4};
	int outcomes[2] = {0, 0};

	CHECK_EQ(sigaction(SIGTRAP, &trap, &before), 0);
	for (int missing = 0; missing < 4; missing++) {
		storing.after = 0;
		do {
			struct gdr_slots slots = new_inbox().slots;
			unsigned int found[4];
			int whole;

			slots.record_nbytes = sizeof(expected);
			gdr_slot_put16(&slots, 0, 0, expected);
			storing.word = (uint64_t *)memory->slots + missing;
			storing.value = *storing.word;
			storing.done = 0;
			*storing.word = 0;
			__asm__ volatile("int3" ::: "memory");
			whole = look(&slots, 0, (char *)found);
			__asm__ volatile("int3" ::: "memory");
			if (whole)
				CHECK_MEM_EQ(found, expected, sizeof(expected));
			outcomes[whole]++;
		} while (storing.done > storing.after++);
	}
	CHECK(outcomes[0] > 0 && outcomes[1] > 0);
	CHECK_EQ(sigaction(SIGTRAP, &before, NULL), 0);
}

#define STEPPED TEST(a_record_is_whole_whichever_instructions_its_last_word_comes_between),
#else
#define STEPPED
#endif

static void a_number_without_a_record_holds_back_those_after_it(void)
{
	struct gdr_inbox inbox = new_inbox();
	struct gdr_inbox_reader reader = new_reader(&inbox);

	CHECK_EQ(gdr_inbox_reserve(&inbox, 1), 0);
	push(&inbox, 3, 1);
	CHECK_EQ(gdr_inbox_ready(&reader, CAPACITY), 0);
	put(&inbox, 0, made(3, 0));
	CHECK_EQ(gdr_inbox_ready(&reader, CAPACITY), 2);
	pop(&reader, 3, 0);
	pop(&reader, 3, 1);
}

static void a_full_inbox_gives_numbers_for_what_there_is_room_for(void)
{
	struct gdr_inbox inbox = new_inbox();
	struct gdr_inbox_reader reader = new_reader(&inbox);
	unsigned long long number, taken = 0;

	CHECK_EQ(gdr_inbox_try_reserve(&inbox, 3, &number, &taken), 3);
	CHECK_EQ(number, 0);
	CHECK_EQ(gdr_inbox_try_reserve(&inbox, 32, &number, &taken), CAPACITY - 3);
	CHECK_EQ(number, 3);
	CHECK_EQ(gdr_inbox_try_reserve(&inbox, 1, &number, &taken), 0);
	CHECK_EQ(gdr_inbox_free(&inbox, CAPACITY - 1, &taken), 1);
	CHECK_EQ(gdr_inbox_free(&inbox, CAPACITY, &taken), 0);
	for (uint64_t i = 0; i < CAPACITY; i++)
		put(&inbox, i, made(4, i));
	for (uint64_t i = 0; i < CAPACITY / 4; i++)
		pop(&reader, 4, i);
	CHECK_EQ(gdr_inbox_free(&inbox, CAPACITY, &taken), 1);
	CHECK_EQ(gdr_inbox_reserve(&inbox, CAPACITY), CAPACITY); /* more than has room: they wait */
	CHECK_EQ(gdr_inbox_try_reserve(&inbox, 1, &number, &taken), 0);
	CHECK_EQ(memory->reserved, 2 * CAPACITY);
}

static void room_is_told_once_for_a_quarter_of_the_ring(void)
{
	struct gdr_inbox inbox = new_inbox();
	struct gdr_inbox_reader reader = new_reader(&inbox);

	for (uint64_t i = 0; i < 4 * CAPACITY; i++) {
		push(&inbox, 5, i);
		pop(&reader, 5, i);
		CHECK_EQ(memory->taken, (i + 1) / (CAPACITY / 4) * (CAPACITY / 4));
	}
}

static void a_reader_that_follows_another_tells_of_all_its_room(void)
{
	struct gdr_inbox inbox = new_inbox();
	unsigned long long taken = 0;

	memory->reserved = memory->head = CAPACITY; /* taken by a reader that was killed then */
	CHECK_EQ(gdr_inbox_free(&inbox, CAPACITY, &taken), 0);
	CHECK_EQ(new_reader(&inbox).popped, CAPACITY);
	CHECK_EQ(gdr_inbox_free(&inbox, CAPACITY, &taken), 1);
}

static void numbers_go_on_beyond_32_bits(void)
{
	const uint64_t start = (1ull << 32) - CAPACITY - 3; /* the stamp wraps before the number */
	struct gdr_inbox inbox = new_inbox();
	struct gdr_inbox_reader reader;

	memory->reserved = memory->taken = memory->head = start;
	for (uint64_t i = start - CAPACITY; i < start; i++)
		put(&inbox, i, made(6, i));
	reader = new_reader(&inbox);
	for (uint64_t i = start; i < start + 2 * CAPACITY; i++) {
		unsigned long long taken = memory->taken, number = gdr_inbox_reserve(&inbox, 1);

		CHECK_EQ(number, i);
		CHECK_EQ(gdr_inbox_free(&inbox, number, &taken), 1);
		CHECK_EQ(gdr_inbox_ready(&reader, 1), 0);
		put(&inbox, number, made(6, i));
		pop(&reader, 6, i);
	}
}

static void the_end_comes_after_the_last_record(void)
{
	struct gdr_inbox inbox = new_inbox();
	struct gdr_inbox_reader reader = new_reader(&inbox);

	CHECK(!gdr_inbox_ended(&reader));
	push(&inbox, 7, 0);
	CHECK_EQ(gdr_inbox_reserve(&inbox, 1), 1); /* and its record is still under way */
	gdr_inbox_finish(&inbox);
	pop(&reader, 7, 0);
	CHECK(!gdr_inbox_ended(&reader));
	put(&inbox, 1, made(7, 1));
	pop(&reader, 7, 1);
	CHECK(gdr_inbox_ended(&reader));
}

static void a_reader_that_closes_is_noticed_where_there_is_no_room(void)
{
	struct gdr_inbox inbox = new_inbox();
	struct gdr_inbox_reader reader = new_reader(&inbox);
	unsigned long long number, taken = 0;

	push(&inbox, 8, 0);
	CHECK(!gdr_inbox_closed(&inbox));
	gdr_inbox_close(&reader);
	CHECK(gdr_inbox_closed(&inbox));
	CHECK_EQ(gdr_inbox_free(&inbox, CAPACITY, &taken), -1);
	CHECK_EQ(gdr_inbox_try_reserve(&inbox, CAPACITY, &number, &taken), 0);
}

static void a_reader_that_was_closed_takes_nothing_and_is_at_its_end(void)
{
	struct gdr_inbox inbox = new_inbox();
	struct gdr_inbox_reader reader = new_reader(&inbox);
	struct record found;

	for (uint64_t i = 0; i < CAPACITY; i++)
		push(&inbox, 11, i);
	pop(&reader, 11, 0);
	CHECK(!gdr_inbox_ended(&reader));
	gdr_inbox_close(&reader);
	CHECK_EQ(gdr_inbox_ready(&reader, CAPACITY), 0);
	for (int i = 0; i < CAPACITY; i++)
		CHECK_EQ(gdr_inbox_pop(&reader, &found, 1), 0);
	CHECK(gdr_inbox_ended(&reader));
	CHECK_EQ(memory->taken, 1 | GDR_INBOX_CLOSED);
	CHECK_EQ(memory->head, 1);
}

#define PRODUCERS 4
#define EACH 50000

struct producer {
	pthread_t thread;
	const struct gdr_inbox *inbox;
	uint64_t from, pushed;
	int result; /* of the last look for room */
};

static struct producer producers[PRODUCERS];

/* Push `count` records as the lanes of a warp do, which have one reservation for all. */
static int push_together(struct producer *self, uint64_t count, unsigned long long *taken)
{
	unsigned long long number;

	if (self->from % 2) {
		count = gdr_inbox_try_reserve(self->inbox, (unsigned int)count, &number, taken);
		if (!count)
			return gdr_inbox_closed(self->inbox) ? -1 : 0;
	} else {
		number = gdr_inbox_reserve(self->inbox, (unsigned int)count);
	}
	for (uint64_t i = 0; i < count; i++) {
		int is_free;

		while (!(is_free = gdr_inbox_free(self->inbox, number + i, taken)))
			sched_yield();
		if (is_free < 0)
			return -1;
		put(self->inbox, number + i, made(self->from, self->pushed++));
	}
	return 1;
}

static void *produce(void *context)
{
	struct producer *self = context;
	unsigned long long taken = 0;

	while (self->pushed < EACH && self->result >= 0) {
		uint64_t count = 1 + self->pushed % (2 * CAPACITY), left = EACH - self->pushed;

		self->result = push_together(self, count < left ? count : left, &taken);
		if (!self->result)
			sched_yield();
	}
	return NULL;
}

static void start_producers(const struct gdr_inbox *inbox)
{
	for (uint64_t i = 0; i < PRODUCERS; i++) {
		producers[i] = (struct producer){.inbox = inbox, .from = i};
		CHECK_EQ(pthread_create(&producers[i].thread, NULL, produce, &producers[i]), 0);
	}
}

static void join_producers(void)
{
	for (int i = 0; i < PRODUCERS; i++)
		CHECK_EQ(pthread_join(producers[i].thread, NULL), 0);
}

static void many_threads_hand_over_every_record_whole_and_in_their_order(void)
{
	struct gdr_inbox inbox = new_inbox();
	struct gdr_inbox_reader reader = new_reader(&inbox);
	uint64_t next[PRODUCERS] = {0}, done = 0;
	struct record found[CAPACITY];

	start_producers(&inbox);
	while (done < PRODUCERS * EACH) {
		uint64_t count = gdr_inbox_pop(&reader, found, 1 + done % CAPACITY);

		for (uint64_t i = 0; i < count; i++) {
			check_whole(&found[i]);
			CHECK_EQ(found[i].word[1], next[found[i].word[0]]++);
		}
		if (!count)
			sched_yield();
		done += count;
	}
	join_producers();
	CHECK_EQ(memory->reserved, PRODUCERS * EACH);
	CHECK_EQ(gdr_inbox_ready(&reader, 1), 0);
}

static void threads_that_wait_for_room_end_when_the_reader_closes(void)
{
	struct gdr_inbox inbox = new_inbox();
	struct gdr_inbox_reader reader = new_reader(&inbox);
	struct record found;

	start_producers(&inbox);
	for (int i = 0; i < 100; i++)
		while (!gdr_inbox_pop(&reader, &found, 1))
			sched_yield();
	gdr_inbox_close(&reader);
	join_producers();
	for (int i = 0; i < PRODUCERS; i++)
		CHECK_EQ(producers[i].result, -1);
}

static uint64_t message[PRODUCERS * EACH]; /* ordinary memory, which only the ring orders */

static void *leave_messages(void *context)
{
	struct producer *self = context;
	unsigned long long taken = 0, number;

	for (uint64_t i = self->from; i < PRODUCERS * EACH; i += PRODUCERS) {
		message[i] = ~i;
		number = gdr_inbox_reserve(self->inbox, 1);
		while (!gdr_inbox_free(self->inbox, number, &taken))
			sched_yield();
		gdr_release_fence();
		put(self->inbox, number, made(self->from, i));
	}
	return NULL;
}

static void what_a_producer_stored_before_its_record_is_there_with_it(void)
{
	struct gdr_inbox inbox = new_inbox();
	struct gdr_inbox_reader reader = new_reader(&inbox);
	struct record found;

	for (uint64_t i = 0; i < PRODUCERS; i++) {
		producers[i] = (struct producer){.inbox = &inbox, .from = i};
		CHECK_EQ(pthread_create(&producers[i].thread, NULL, leave_messages, &producers[i]),
			 0);
	}
	for (uint64_t done = 0; done < PRODUCERS * EACH; done++) {
		while (!gdr_inbox_pop(&reader, &found, 1))
			sched_yield();
		CHECK_EQ(message[found.word[1]], ~found.word[1]);
	}
	join_producers();
}

/* Run `work` in a child until it is killed, some 0.1 to 1 ms after it began. */
static void run_and_kill(void (*work)(const struct gdr_inbox *), const struct gdr_inbox *inbox)
{
	struct timespec pause = {.tv_nsec = 100000 + rand() % 900000};
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0)
		for (;;)
			work(inbox);
	nanosleep(&pause, NULL);
	CHECK_EQ(kill(child, SIGKILL), 0);
	CHECK_EQ(waitpid(child, NULL, 0), child);
}

static void push_one(const struct gdr_inbox *inbox)
{
	unsigned long long number, taken = 0;

	if (gdr_inbox_try_reserve(inbox, 1, &number, &taken))
		put(inbox, number, made(9, number));
}

static void a_killed_producer_leaves_whole_records_or_holds_back_the_next(void)
{
	for (int i = 0; i < 30; i++) {
		struct gdr_inbox inbox = new_inbox();
		struct gdr_inbox_reader reader = new_reader(&inbox);
		struct record found;

		run_and_kill(push_one, &inbox);
		push_one(&inbox);
		while (gdr_inbox_pop(&reader, &found, 1)) {
			check_whole(&found);
			CHECK_EQ(found.word[1], reader.popped - 1);
		}
		CHECK(memory->reserved - reader.popped <= 2);
	}
}

static void take_all(const struct gdr_inbox *inbox)
{
	struct gdr_inbox_reader reader = new_reader(inbox);
	struct record found;

	for (;;)
		if (gdr_inbox_pop(&reader, &found, 1))
			check_whole(&found);
}

static void a_killed_reader_is_followed_by_one_that_misses_nothing(void)
{
	struct gdr_inbox inbox = new_inbox();
	uint64_t next[PRODUCERS] = {0}, seen = 0;
	struct record found;

	start_producers(&inbox);
	for (int i = 0; i < 20; i++) {
		struct gdr_inbox_reader reader;

		run_and_kill(take_all, &inbox);
		reader = new_reader(&inbox);
		for (uint64_t before = reader.popped; reader.popped < before + CAPACITY;) {
			if (!gdr_inbox_pop(&reader, &found, 1)) {
				if (reader.popped == PRODUCERS * EACH)
					break;
				sched_yield();
				continue;
			}
			check_whole(&found);
			CHECK(found.word[1] >= next[found.word[0]]);
			next[found.word[0]] = found.word[1] + 1;
			seen++;
		}
	}
	CHECK(seen > 0);
	for (struct gdr_inbox_reader reader = new_reader(&inbox); reader.popped < PRODUCERS * EACH;)
		if (!gdr_inbox_pop(&reader, &found, 1))
			sched_yield();
	join_producers();
	CHECK_EQ(memory->head, PRODUCERS * EACH);
}

static void numbers_whose_producers_are_gone_are_passed(void)
{
	struct gdr_inbox inbox = new_inbox();
	struct gdr_inbox_reader reader = new_reader(&inbox);

	memory->reserved = 5;
	put(&inbox, 2, made(1, 2));
	put(&inbox, 4, made(1, 4));
	CHECK_EQ(gdr_inbox_ready(&reader, 1), 0);
	core_inbox_pass(&reader, 5);
	pop(&reader, 1, 2);
	core_inbox_pass(&reader, 5);
	pop(&reader, 1, 4);
	core_inbox_pass(&reader, 5);
	CHECK_EQ(reader.popped, 5);
	CHECK_EQ(memory->head, 5);
	core_inbox_pass(&reader, 1ull << 62); /* or whatever a peer stores */
	CHECK_EQ(reader.popped, 1ull << 62);
	CHECK_EQ(memory->taken, 1ull << 62);
}

static void room_is_given_again_after_a_reader_was_taken_for_dead(void)
{
	struct gdr_inbox inbox = new_inbox();
	struct gdr_inbox_reader reader = new_reader(&inbox);

	push(&inbox, 1, 0);
	pop(&reader, 1, 0);
	core_inbox_end_reading(&reader);
	CHECK(gdr_inbox_closed(&inbox));
	CHECK(core_inbox_give_room(&reader));
	CHECK(!gdr_inbox_closed(&inbox));
	CHECK_EQ(memory->taken, 1);
	memory->head = GDR_INBOX_CLOSED; /* which no reader stores */
	CHECK(!core_inbox_give_room(&reader));
}

CHECK_MAIN(STEPPED TEST(kernels_in_other_languages_find_the_fields_at_their_offsets),
	   TEST(records_come_out_in_order_from_every_place_in_the_ring),
	   TEST(a_record_is_ready_when_its_last_word_has_arrived_whichever_that_is),
	   TEST(a_number_without_a_record_holds_back_those_after_it),
	   TEST(a_full_inbox_gives_numbers_for_what_there_is_room_for),
	   TEST(room_is_told_once_for_a_quarter_of_the_ring),
	   TEST(a_reader_that_follows_another_tells_of_all_its_room),
	   TEST(numbers_go_on_beyond_32_bits), TEST(the_end_comes_after_the_last_record),
	   TEST(a_reader_that_closes_is_noticed_where_there_is_no_room),
	   TEST(a_reader_that_was_closed_takes_nothing_and_is_at_its_end),
	   TEST(many_threads_hand_over_every_record_whole_and_in_their_order),
	   TEST(threads_that_wait_for_room_end_when_the_reader_closes),
	   TEST(what_a_producer_stored_before_its_record_is_there_with_it),
	   TEST(a_killed_producer_leaves_whole_records_or_holds_back_the_next),
	   TEST(a_killed_reader_is_followed_by_one_that_misses_nothing),
	   TEST(numbers_whose_producers_are_gone_are_passed),
	   TEST(room_is_given_again_after_a_reader_was_taken_for_dead))
