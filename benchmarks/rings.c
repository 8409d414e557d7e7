/* SPDX-License-Identifier: MIT */
/* Inboxes read and links called from C, timed: what they cost without Python. */
#include <string.h>
#include <time.h>

#include "channel/ring.h"
#include "gdrpy/inbox.h"

#define ODD 0x9E3779B97F4A7C15ull
#define BATCH 256

struct record {
	uint64_t word[8];
};

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* Whether a record of inbox_kernel.cu is whole, and follows the thread's one before. */
static bool is_right(const struct record *record, uint64_t threads, uint64_t *next)
{
	uint64_t from = record->word[0], index = record->word[1], wrong = 0;

	for (uint64_t i = 2; i < 8; i++)
		wrong |= record->word[i] ^ ((from << 40 | index) * 8 + i) * ODD;
	return from < threads && next[from]++ == index && !wrong;
}

/*
 * Take `count` records, and count those that are wrong, or came without their message, into *wrong.
 * `next` has the next index of each thread; `messages`, which may be NULL, the last message.
 * Returns how many came until nothing has come for `limit` ns.
 */
uint64_t bench_inbox(struct gdr_inbox_reader *reader, uint64_t count, uint64_t limit,
		     uint64_t threads, uint64_t *next, const uint64_t *messages, uint64_t *wrong)
{
	struct record records[BATCH];
	uint64_t done = 0, last = now();

	while (done < count) {
		uint64_t left = count - done;
		uint64_t n = gdr_inbox_pop(reader, records, left < BATCH ? left : BATCH);

		if (!n && now() - last > limit)
			break;
		if (!n)
			continue;
		for (uint64_t i = 0; i < n; i++) {
			*wrong += !is_right(&records[i], threads, next);
			if (messages && records[i].word[0] < threads)
				*wrong += __atomic_load_n(&messages[records[i].word[0]],
							  __ATOMIC_RELAXED) < records[i].word[1];
		}
		done += n;
		last = now();
	}
	return done;
}

/* A CPU thread that answers requests as the kernel in link_kernel.cu does. */
void bench_serve(int type, char *memory, const struct gdr_link *link)
{
	struct core_ring_consumer consumer = {0};
	const struct gdr_channel *requests = &link->requests;
	struct record record;

	core_ring_place(&consumer.ring, type, memory, (char *)requests->head,
			requests->record_nbytes, requests->capacity);
	core_ring_consumer_begin(&consumer);
	while (!core_ring_ended(&consumer)) {
		uint64_t number = consumer.head;

		if (!core_ring_ready(&consumer, 1))
			continue;
		core_ring_take(&consumer, (char *)&record, 1);
		for (uint64_t i = 0; i < 8; i++)
			record.word[i] = ~record.word[i];
		gdr_slot_put(&link->answers, number, (const char *)&record);
	}
	core_ring_stop(&consumer.ring);
}

/*
 * Call a link `rounds` times as Link.call() does, for the nanoseconds of each. `memory` is the
 * mapping of the link's GPU memory; the descriptor's addresses of host memory are the CPU's too.
 * Returns how many calls were answered rightly, until one was not within `limit` ns.
 */
uint64_t bench_calls(int type, char *memory, const struct gdr_link *link, uint64_t rounds,
		     uint64_t limit, uint64_t *samples)
{
	struct core_ring_producer producer = {0};
	const struct gdr_channel *requests = &link->requests;

	core_ring_place(&producer.ring, type, memory, (char *)requests->head,
			requests->record_nbytes, requests->capacity);
	producer.head = producer.tail = core_ring_popped(&producer.ring);
	for (uint64_t round = 0; round < rounds; round++) {
		struct record request, answer;
		uint64_t number = producer.tail, begun;
		bool came;

		for (uint64_t i = 0; i < 8; i++)
			request.word[i] = (number * 8 + i) * ODD;
		begun = now();
		while (!core_ring_push(&producer, (const char *)&request, 1))
			if (now() - begun > limit)
				return round;
		while (!(came = gdr_slot_get(&link->answers, number, NULL)))
			if (now() - begun > limit)
				break;
		gdr_slot_get(&link->answers, number, (char *)&answer);
		samples[round] = now() - begun;
		for (uint64_t i = 0; i < 8; i++)
			came = came && answer.word[i] == ~request.word[i];
		if (!came)
			return round;
	}
	return rounds;
}
