/* SPDX-License-Identifier: MIT */
/* Inboxes read and links called from C, timed: what they cost without Python. */
#include <string.h>
#include <time.h>

#include "channel/requests.h"

#define ODD 0x9E3779B97F4A7C15ull
#define BATCH 256
/* Looks between two readings of the clock. */
#define LOOKS 1024

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

/* A link's end on the CPU: `memory` is the mapping of its GPU memory, and the descriptor's
 * addresses of host memory are the CPU's too. */
static struct core_requests end_of(int type, char *memory, const struct gdr_link *link)
{
	struct core_requests end = {.link = *link};

	core_requests_place(&end, type, memory, (char *)link->stopped - CORE_LINK_STOPPED);
	end.pushed = gdr_load_acquire(end.link.taken);
	return end;
}

/* A CPU thread that answers requests as the kernel in link_kernel.cu does. */
void bench_serve(int type, char *memory, const struct gdr_link *link)
{
	struct core_requests end = end_of(type, memory, link);

	for (uint64_t number = end.pushed;; number++) {
		unsigned long long words[16];
		uint32_t answer[16];
		int found;

		while (!(found = gdr_link_look(&end.link, number, 4, words)))
			;
		if (found < 0)
			break;
		for (int i = 0; i < 16; i++)
			answer[i] = ~(uint32_t)words[i];
		gdr_slot_put(&end.link.answers, number, (const char *)answer);
	}
	gdr_store(end.link.stopped, 1);
}

/*
 * Call a link `rounds` times as Link.call() does, for the nanoseconds of each. Returns how many
 * calls were answered rightly, until one was not within `limit` ns.
 */
uint64_t bench_calls(int type, char *memory, const struct gdr_link *link, uint64_t rounds,
		     uint64_t limit, uint64_t *samples)
{
	struct core_requests end = end_of(type, memory, link);

	for (uint64_t round = 0; round < rounds; round++) {
		struct record request, answer;
		uint64_t number = end.pushed, begun;
		bool came;

		for (uint64_t i = 0; i < 8; i++)
			request.word[i] = (number * 8 + i) * ODD;
		begun = now();
		core_requests_push(&end, (const char *)&request);
		/* As Link.call(), it reads the clock only if it waits for long. */
		for (uint64_t looks = 1;
		     !(came = gdr_slot_get(&end.link.answers, number, (char *)&answer)); looks++)
			if (looks % LOOKS == 0 && now() - begun > limit)
				break;
		samples[round] = now() - begun;
		for (uint64_t i = 0; i < 8; i++)
			came = came && answer.word[i] == ~request.word[i];
		if (!came)
			return round;
	}
	return rounds;
}
