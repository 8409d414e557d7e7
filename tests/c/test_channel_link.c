/* SPDX-License-Identifier: MIT */
/*
 * A link, both ends of it. The kernel's end is the code that kernels run, compiled for the CPU:
 * threads and processes stand in for the threads of kernels. Many of them make this the litmus test
 * of docs/channel-protocol.md, by ThreadSanitizer and on arm64 too.
 */
#include "channel/inbox.h"
#include "channel/requests.h"
#include "check.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#define CAPACITY 8
#define NBYTES 64
#define WORDS (NBYTES / 8)
#define PIECES (NBYTES / 16)

/* The memory of a link, as its processes share it. */
static struct memory {
	_Alignas(256) char gpu[CORE_LINK_REQUESTS + CORE_LINK_PAGE + 2 * CAPACITY * NBYTES];
	char beyond_gpu[64];
	_Alignas(256) char host[CORE_LINK_ANSWERS + 2 * CAPACITY * NBYTES];
	char beyond_host[64];
} *memory;

struct record {
	uint64_t word[WORDS];
};

/* Request number `number`, or its answer: no two words of all are the same. */
static struct record made(uint64_t what, uint64_t number)
{
	struct record record = {{what, number}};

	for (uint64_t i = 2; i < WORDS; i++)
		record.word[i] = ((what << 40 | number) * WORDS + i) * 0x9E3779B97F4A7C15ull;
	return record;
}

static void check_made(const struct record *record, uint64_t what, uint64_t number)
{
	struct record expected = made(what, number);

	CHECK_MEM_EQ(record, &expected, sizeof(expected));
}

enum {
	REQUEST = 1,
	ANSWER
};

static struct core_requests new_requests_of(enum core_mapping_kind type)
{
	struct core_requests requests = {
		.link = {.requests = {0, CAPACITY, NBYTES}, .answers = {0, CAPACITY, NBYTES}}};

	if (!memory)
		memory = mmap(NULL, sizeof(*memory), PROT_READ | PROT_WRITE,
			      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	memset(memory, 0xAA, sizeof(*memory));
	core_requests_place(&requests, type, memory->gpu, memory->host);
	core_requests_begin(&requests, memory->gpu, (uintptr_t)memory->gpu,
			    (uintptr_t)memory->host);
	return requests;
}

static struct core_requests new_requests(void)
{
	return new_requests_of(CORE_MAPPING_CACHED);
}

/* As a kernel is given it. */
static const struct gdr_link *given(void)
{
	return (const struct gdr_link *)memory->gpu;
}

static void push(struct core_requests *requests)
{
	struct record record = made(REQUEST, requests->pushed);

	core_requests_push(requests, (const char *)&record);
}

/* The same for a kernel that is nearer to the other copy of the requests. */
static struct gdr_link given_twin(void)
{
	struct gdr_link link = *given();

	link.requests.address = link.twin;
	return link;
}

static int look_at(const struct gdr_link *link, uint64_t number, struct record *record)
{
	unsigned long long words[4 * PIECES];
	int found = gdr_link_look(link, number, PIECES, words);

	for (uint64_t i = 0; i < WORDS; i++)
		record->word[i] = (words[2 * i] & 0xffffffff) | words[2 * i + 1] << 32;
	return found;
}

/* Look for a request once, as gdr_link_look(). */
static int look(uint64_t number, struct record *record)
{
	return look_at(given(), number, record);
}

static int look_at_twin(uint64_t number, struct record *record)
{
	struct gdr_link twin = given_twin();

	return look_at(&twin, number, record);
}

static void check_pushed(uint64_t number)
{
	struct record found;

	CHECK_EQ(look(number, &found), 1);
	check_made(&found, REQUEST, number);
	CHECK_EQ(look_at_twin(number, &found), 1);
	check_made(&found, REQUEST, number);
}

/* Where a word of a request lies in its slots. */
static uint64_t *word_of(unsigned long long requests, uint64_t number, uint64_t word)
{
	return (uint64_t *)(uintptr_t)requests + number % CAPACITY * 2 * WORDS + word;
}

static void answer(uint64_t number)
{
	struct record record = made(ANSWER, number);

	gdr_slot_put(&given()->answers, number, (const char *)&record);
}

static void kernels_in_other_languages_find_the_fields_at_their_offsets(void)
{
	CHECK_EQ(sizeof(struct gdr_link), 96);
	CHECK_EQ(offsetof(struct gdr_link, requests), 16);
	CHECK_EQ(offsetof(struct gdr_link, answers), 40);
	CHECK_EQ(offsetof(struct gdr_link, end), 64);
	CHECK_EQ(offsetof(struct gdr_link, taken), 72);
	CHECK_EQ(offsetof(struct gdr_link, stopped), 80);
	CHECK_EQ(offsetof(struct gdr_link, twin), 88);
	CHECK_MEM_EQ(&(unsigned long long){GDR_LINK_MAGIC}, "GDRPLINK", 8);
}

static void a_new_link_has_no_request_and_no_answer_whatever_its_memory_held(void)
{
	struct core_requests requests = new_requests();
	struct record found;

	for (uint64_t i = 0; i < CAPACITY; i++) {
		push(&requests);
		answer(i);
	}
	core_requests_close(&requests, requests.pushed);
	requests.pushed = 0;
	core_requests_begin(&requests, memory->gpu, (uintptr_t)memory->gpu,
			    (uintptr_t)memory->host);
	for (uint64_t i = 0; i < CAPACITY; i++) {
		CHECK_EQ(look(i, &found), 0);
		CHECK_EQ(look_at_twin(i, &found), 0);
		CHECK_EQ(gdr_slot_get(&given()->answers, i, NULL), 0);
	}
	CHECK_EQ(core_requests_stopped(&requests), false);
	for (size_t i = 0; i < sizeof(memory->beyond_gpu); i++)
		CHECK_EQ(memory->beyond_gpu[i] & memory->beyond_host[i], (char)0xAA);
}

static void a_request_has_come_when_its_last_word_has_whichever_that_is(void)
{
	struct core_requests requests = new_requests();
	struct record found;

	for (uint64_t number = 0; number < 4 * WORDS; number++) {
		uint64_t *first = word_of(given()->requests.address, number, number % (2 * WORDS));
		uint64_t *second = word_of(given()->twin, number, number % (2 * WORDS));
		uint64_t before = *first, arrived;

		CHECK_EQ(*second, before);
		push(&requests);
		arrived = *first;
		CHECK_EQ(*second, arrived);
		*first = *second = before;
		CHECK_EQ(look(number, &found) | look_at_twin(number, &found), 0);
		*first = arrived;
		CHECK_EQ(look_at_twin(number, &found), 0);
		CHECK_EQ(look(number, &found), 1);
		check_made(&found, REQUEST, number);
		*second = arrived;
		CHECK_EQ(look_at_twin(number, &found), 1);
		check_made(&found, REQUEST, number);
	}
}

static void the_end_comes_after_the_last_request(void)
{
	struct core_requests requests = new_requests();
	struct record found;

	push(&requests);
	push(&requests);
	core_requests_close(&requests, requests.pushed);
	CHECK_EQ(look(0, &found), 1);
	CHECK_EQ(look(1, &found), 1);
	check_made(&found, REQUEST, 1);
	CHECK_EQ(look(2, &found), -1);
	CHECK_EQ(look(3, &found), -1);
	memset(memory->gpu + CORE_LINK_REQUESTS, 0, 4 * NBYTES); /* as if still under way */
	CHECK_EQ(look(0, &found), 0);
	CHECK_EQ(look(1, &found), 0);
}

static void numbers_go_on_beyond_32_bits(void)
{
	struct core_requests requests = new_requests();
	struct record found;

	requests.pushed = (1ull << 32) - 2 * CAPACITY - 3; /* stamps wrap before numbers */
	for (int i = 0; i < 3 * CAPACITY; i++) {
		uint64_t number = requests.pushed;

		CHECK_EQ(look(number, &found), 0);
		push(&requests);
		CHECK_EQ(look(number, &found), 1);
		check_made(&found, REQUEST, number);
		CHECK_EQ(look(number + CAPACITY, &found), 0);
	}
}

/* Through each type of mapping, in slots of a size that one buffer holds, and of larger ones. */
static void every_size_lies_in_its_slot_alike_whatever_the_mapping(void)
{
	static const uint64_t sizes[] = {16, 32, 512, 528, 1024, 1040, 65536};
	static _Alignas(256) char gpu[CORE_LINK_REQUESTS + 2 * 2 * 65536];
	static char host[CORE_LINK_ANSWERS + 2 * 2 * 16], record[65536], found[65536];

	for (size_t i = 0; i < sizeof(record); i++)
		record[i] = (char)(i * 0x9E3779B97F4A7C15ull >> 56);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		for (int type = CORE_MAPPING_WC; type <= CORE_MAPPING_DEVICE; type++) {
			struct core_requests requests = {
				.link = {.requests = {0, 2, sizes[i]}, .answers = {0, 2, 16}}};
			struct gdr_slots twin;

			core_requests_place(&requests, (enum core_mapping_kind)type, gpu, host);
			core_requests_begin(&requests, gpu, (uintptr_t)gpu, (uintptr_t)host);
			twin = requests.link.requests;
			twin.address = requests.link.twin;
			CHECK_EQ(twin.address - requests.link.requests.address,
				 sizes[i] <= 1024 ? 4096 : 0);
			for (uint64_t number = 0; number < 3; number++) {
				CHECK_EQ(gdr_slot_get(&requests.link.requests, number, found), 0);
				CHECK_EQ(gdr_slot_get(&twin, number, found), 0);
				core_requests_push(&requests, record);
				CHECK_EQ(gdr_slot_get(&requests.link.requests, number, found), 1);
				CHECK_MEM_EQ(found, record, sizes[i]);
				memset(found, 0, sizes[i]);
				CHECK_EQ(gdr_slot_get(&twin, number, found), 1);
				CHECK_MEM_EQ(found, record, sizes[i]);
			}
		}
	}
}

#define CALLS 40000
#define SERVERS 3

/* Ordinary memory, which only the link orders: what a request, and an answer, tells of. */
static uint64_t asked[CAPACITY], told[CAPACITY];

/* Every third request, as warps of a kernel do, which are nearer to one copy or the other. */
static void *serve(void *context)
{
	struct record found;
	int came;

	for (uint64_t number = (uintptr_t)context;; number += SERVERS) {
		while (!(came = number % 2 ? look_at_twin(number, &found) : look(number, &found)))
			sched_yield();
		if (came < 0)
			return NULL;
		check_made(&found, REQUEST, number);
		CHECK_EQ(asked[number % CAPACITY], ~number);
		told[number % CAPACITY] = number * 3;
		gdr_release_fence();
		answer(number);
	}
}

/* A piece of every request, as threads of a block do. */
static void *serve_piece(void *context)
{
	unsigned int piece = (unsigned int)(uintptr_t)context;

	for (uint64_t number = 0;; number++) {
		unsigned long long words[4], end;
		struct record request = made(REQUEST, number), reply = made(ANSWER, number);
		unsigned int pieces[PIECES][4];

		do {
			end = gdr_load(given()->end);
			if (gdr_slot_load(&given()->requests, number, piece, 1, words))
				break;
			if (end && number >= end - 1)
				return NULL;
			sched_yield();
		} while (true);
		memcpy(pieces, &request, sizeof(pieces));
		for (int i = 0; i < 4; i++)
			CHECK_EQ((unsigned int)words[i], pieces[piece][i]);
		CHECK_EQ(asked[number % CAPACITY], ~number);
		memcpy(pieces, &reply, sizeof(pieces));
		gdr_slot_put16(&given()->answers, number, piece, pieces[piece]);
	}
}

static void call_threads(void *(*server)(void *), uintptr_t servers, bool tells)
{
	struct core_requests requests = new_requests();
	pthread_t threads[4];
	struct record found;

	for (uintptr_t i = 0; i < servers; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, server, (void *)i), 0);
	for (uint64_t answered = 0; answered < CALLS;) {
		if (requests.pushed < CALLS && requests.pushed - answered < CAPACITY) {
			asked[requests.pushed % CAPACITY] = ~requests.pushed;
			push(&requests);
		}
		if (!gdr_slot_get(&requests.link.answers, answered, (char *)&found)) {
			sched_yield();
			continue;
		}
		check_made(&found, ANSWER, answered);
		if (tells)
			CHECK_EQ(told[answered % CAPACITY], answered * 3);
		answered++;
	}
	core_requests_close(&requests, requests.pushed);
	for (uintptr_t i = 0; i < servers; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
}

static void threads_that_take_turns_get_whole_requests_and_what_came_before_them(void)
{
	call_threads(serve, SERVERS, true);
}

static void threads_that_each_take_a_piece_answer_together(void)
{
	call_threads(serve_piece, PIECES, false);
}

/* Run `work` in a child until it is killed, some 0.1 to 1 ms after it began. */
static void run_and_kill(void (*work)(struct core_requests *), struct core_requests *requests)
{
	struct timespec pause = {.tv_nsec = 100000 + rand() % 900000};
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0)
		work(requests);
	nanosleep(&pause, NULL);
	CHECK_EQ(kill(child, SIGKILL), 0);
	CHECK_EQ(waitpid(child, NULL, 0), child);
}

/* And count the requests, as a server does. */
static void push_for_ever(struct core_requests *requests)
{
	for (;;) {
		push(requests);
		gdr_store(requests->link.taken, requests->pushed);
	}
}

static void a_caller_that_was_killed_leaves_whole_requests(void)
{
	for (int i = 0; i < 30; i++) {
		struct core_requests requests = new_requests();
		uint64_t last, number;
		struct record found;

		run_and_kill(push_for_ever, &requests);
		last = gdr_load_acquire(requests.link.taken);
		number = last > CAPACITY ? last - CAPACITY + 1 : 0; /* the one before may be torn */
		for (; number < last; number++) {
			CHECK_EQ(look(number, &found), 1);
			check_made(&found, REQUEST, number);
		}
		if (look(last, &found))
			check_made(&found, REQUEST, last);
		if (look_at_twin(last, &found))
			check_made(&found, REQUEST, last);
		number = core_requests_count(&requests);
		CHECK_EQ(look(last, &found), (int)(number - last));
		CHECK_EQ(look_at_twin(last, &found), (int)(number - last));
	}
}

/* From the request on that no server has answered, or released. */
static void serve_for_ever(struct core_requests *requests)
{
	struct record found;

	for (uint64_t number = core_requests_take_over(requests);; number++) {
		while (!look(number, &found))
			sched_yield();
		check_made(&found, REQUEST, number);
		answer(number);
		gdr_store(requests->link.taken, number + 1);
	}
}

static void a_server_that_was_killed_is_followed_by_one_that_misses_nothing(void)
{
	struct core_requests requests = new_requests();
	uint64_t answered = 0;
	struct record found;
	pid_t child;

	for (int i = 0; i < 20; i++) {
		while (requests.pushed - answered < CAPACITY)
			push(&requests);
		run_and_kill(serve_for_ever, &requests);
		while (gdr_slot_get(&requests.link.answers, answered, (char *)&found))
			check_made(&found, ANSWER, answered++);
		CHECK(gdr_load(requests.link.taken) <= answered);
	}
	child = fork();
	if (child == 0)
		serve_for_ever(&requests);
	while (answered < requests.pushed) {
		if (gdr_slot_get(&requests.link.answers, answered, (char *)&found))
			check_made(&found, ANSWER, answered++);
		else
			sched_yield();
	}
	CHECK_EQ(kill(child, SIGKILL), 0);
	CHECK_EQ(waitpid(child, NULL, 0), child);
}

static void the_next_server_begins_after_what_the_one_before_answered(void)
{
	struct core_requests requests = new_requests();
	unsigned long long *answers = (void *)(memory->host + CORE_LINK_ANSWERS);
	uint64_t stamp = gdr_slot_stamp(&requests.link.answers, 4);

	for (int i = 0; i < 6; i++)
		push(&requests);
	CHECK_EQ(core_requests_take_over(&requests), 0);
	answer(0);
	answer(3);
	answers[4 * WORDS * 2] = stamp | 7; /* a part of answer 4 */
	CHECK_EQ(core_requests_take_over(&requests), 4);
	CHECK_EQ(gdr_load_acquire(given()->taken), 4);
	CHECK(answers[4 * WORDS * 2] >> 32 != stamp >> 32);
	CHECK(gdr_slot_get(&requests.link.answers, 0, NULL));
	CHECK(gdr_slot_get(&requests.link.answers, 3, NULL));
}

static void a_server_that_told_nothing_is_followed_within_the_ring(void)
{
	struct core_requests requests = new_requests();

	for (uint64_t i = 0; i < 3 * CAPACITY; i++) {
		push(&requests);
		answer(i);
	}
	push(&requests);
	CHECK_EQ(core_requests_take_over(&requests), 3 * CAPACITY);
	memory->gpu[CORE_LINK_TAKEN + 7] = 1; /* no server stores that */
	CHECK_EQ(core_requests_take_over(&requests), 3 * CAPACITY);
}

static void a_request_counts_though_its_caller_died_before_it_told(void)
{
	struct core_requests requests = new_requests();
	struct record found;

	push(&requests);
	push(&requests);
	*requests.told = 1;
	CHECK_EQ(core_requests_count(&requests), 2);
	push(&requests);
	*word_of(given()->requests.address, 2, 0) ^= 1ull << 32; /* a stamp of request 2 */
	*word_of(given()->twin, 2, 1) ^= 1ull << 32;
	*requests.told = 2;
	CHECK_EQ(core_requests_count(&requests), 2);
	core_requests_close(&requests, 2);
	CHECK_EQ(look(2, &found), -1);
	core_requests_clear_next(&requests);
	core_requests_open(&requests);
	CHECK_EQ(look(2, &found) | look_at_twin(2, &found), 0);
	requests.pushed = 2;
	push(&requests);
	CHECK_EQ(look(2, &found), 1);
	check_made(&found, REQUEST, 2);
}

static void a_request_counts_though_its_caller_died_between_its_copies(void)
{
	struct core_requests requests = new_requests();
	struct record found;

	for (uint64_t number = 0; number < 4; number++) {
		unsigned long long torn = number % 2 ? given()->twin : given()->requests.address;

		push(&requests);
		*requests.told = number;
		memset(word_of(torn, number, 3), 0, sizeof(uint64_t));
		CHECK_EQ(look(number, &found) + look_at_twin(number, &found), 1);
		CHECK_EQ(core_requests_count(&requests), number + 1);
		check_pushed(number);
	}
}

static void a_caller_that_lives_may_push_while_its_requests_are_counted(void)
{
	struct core_requests requests = new_requests();
	uint64_t *second, newer;

	push(&requests);
	*requests.told = 0;
	second = word_of(given()->twin, 0, 3);
	*second = newer = 2ull * CAPACITY << 32 | 7; /* of request CAPACITY, which follows */
	CHECK_EQ(core_requests_count(&requests), 1);
	CHECK_EQ(*second, newer);
}

static void a_part_of_a_request_that_was_taken_and_answered_is_followed_by_the_whole(void)
{
	struct core_requests requests = new_requests();

	for (uint64_t number = 0; number < CAPACITY + 2; number++) {
		push(&requests);
		answer(number); /* by a kernel that needs no more than the first words */
		gdr_store(requests.link.taken, number + 1);
	}
	*requests.told = CAPACITY + 1;
	*word_of(given()->requests.address, CAPACITY + 1, 2 * WORDS - 1) = 0;
	*word_of(given()->twin, CAPACITY + 1, 2 * WORDS - 1) = 0;
	core_requests_clear_next(&requests);
	CHECK_EQ(core_requests_count(&requests), CAPACITY + 1);
	CHECK_EQ(gdr_load_acquire(given()->taken), CAPACITY + 1);
	CHECK_EQ(gdr_slot_get(&given()->answers, CAPACITY + 1, NULL), 0);
	CHECK_EQ(gdr_slot_get(&given()->answers, 1, NULL), 1); /* else its place is never free */
	CHECK_EQ(gdr_slot_get(&given()->answers, CAPACITY, NULL), 1);
}

static void requests_that_were_not_taken_stay_whole_though_their_caller_died(void)
{
	struct core_requests requests = new_requests();

	for (uint64_t i = 0; i < CAPACITY; i++)
		push(&requests);
	core_requests_clear_next(&requests);
	for (uint64_t i = 0; i < CAPACITY; i++)
		check_pushed(i);
}

CHECK_MAIN(TEST(kernels_in_other_languages_find_the_fields_at_their_offsets),
	   TEST(a_new_link_has_no_request_and_no_answer_whatever_its_memory_held),
	   TEST(a_request_has_come_when_its_last_word_has_whichever_that_is),
	   TEST(the_end_comes_after_the_last_request), TEST(numbers_go_on_beyond_32_bits),
	   TEST(every_size_lies_in_its_slot_alike_whatever_the_mapping),
	   TEST(threads_that_take_turns_get_whole_requests_and_what_came_before_them),
	   TEST(threads_that_each_take_a_piece_answer_together),
	   TEST(a_caller_that_was_killed_leaves_whole_requests),
	   TEST(a_server_that_was_killed_is_followed_by_one_that_misses_nothing),
	   TEST(the_next_server_begins_after_what_the_one_before_answered),
	   TEST(a_server_that_told_nothing_is_followed_within_the_ring),
	   TEST(a_request_counts_though_its_caller_died_before_it_told),
	   TEST(a_request_counts_though_its_caller_died_between_its_copies),
	   TEST(a_caller_that_lives_may_push_while_its_requests_are_counted),
	   TEST(a_part_of_a_request_that_was_taken_and_answered_is_followed_by_the_whole),
	   TEST(requests_that_were_not_taken_stay_whole_though_their_caller_died))
