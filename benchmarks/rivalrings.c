/* SPDX-License-Identifier: MIT */
/* The CPU's end of an inbox, and of the hand-written ring of rivalrings_kernel.cu. */
#include "rivalrings.h"

#include <gdrpy/inbox.h>

#define BATCH 256

static uint64_t take_of_inbox(void *ring, uint64_t *records, uint64_t most)
{
	return gdr_inbox_pop((struct gdr_inbox_reader *)ring, records, most);
}

/* Slots of `words` 64-bit words, a flag and a word that is not used. */
struct hand {
	uint64_t capacity, words;
	volatile uint64_t *slots;
	volatile uint64_t *tail;
};

static uint64_t take_of_hand(void *ring, uint64_t *records, uint64_t most)
{
	struct hand *hand = (struct hand *)ring;
	uint64_t tail = *hand->tail, count = 0;

	for (; count < most; count++) {
		uint64_t place = (tail + count) & (hand->capacity - 1);
		volatile uint64_t *slot = hand->slots + place * (hand->words + 2);

		if (slot[hand->words] != tail + count + 1)
			break;
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		for (uint64_t i = 0; i < hand->words; i++)
			records[count * hand->words + i] = slot[i];
	}
	if (count) {
		__atomic_thread_fence(__ATOMIC_RELEASE);
		*hand->tail = tail + count;
	}
	return count;
}

/* A word of GPU memory, through the mapping. */
static void tell_by_mapping(void *token, uint64_t number)
{
	gdr_publish((unsigned long long *)token, number);
}

static void tell_in_host_memory(void *token, uint64_t number)
{
	__atomic_store_n((uint64_t *)token, number, __ATOMIC_RELEASE);
}

uint64_t bench_take_inbox(void *ring, uint64_t count, uint64_t limit, struct check *check)
{
	return take_all(take_of_inbox, BATCH, ring, count, limit, check);
}

uint64_t bench_take_hand(void *ring, uint64_t count, uint64_t limit, struct check *check)
{
	return take_all(take_of_hand, BATCH, ring, count, limit, check);
}

uint64_t bench_play_inbox(void *token, void *ring, uint64_t done, uint64_t rounds, uint64_t limit,
			  uint64_t *samples, struct check *check)
{
	return play_rounds(tell_by_mapping, token, take_of_inbox, ring, done, rounds, limit,
			   samples, check);
}

uint64_t bench_play_hand(void *token, void *ring, uint64_t done, uint64_t rounds, uint64_t limit,
			 uint64_t *samples, struct check *check)
{
	return play_rounds(tell_in_host_memory, token, take_of_hand, ring, done, rounds, limit,
			   samples, check);
}

uint64_t bench_play_hand_mapped(void *token, void *ring, uint64_t done, uint64_t rounds,
				uint64_t limit, uint64_t *samples, struct check *check)
{
	return play_rounds(tell_by_mapping, token, take_of_hand, ring, done, rounds, limit, samples,
			   check);
}
