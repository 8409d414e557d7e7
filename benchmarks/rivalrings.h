/* SPDX-License-Identifier: MIT */
/* The readers of all rings share this: records, their verification, and the clock. C and C++. */
#ifndef RIVALRINGS_H
#define RIVALRINGS_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define ODD 0x9E3779B97F4A7C15ull
#define WORDS_MAX 8

/*
 * Word 0 of a record is its thread << 40 | its number among those of the thread, from 1; word i is
 * (word 0 * 8 + i) * ODD modulo 2**64, of which the last bit is set and the first is not, since
 * MSCCL++ reserves that one and a trigger's words must not be 0.
 */
struct check {
	uint64_t words, threads;
	uint64_t *next; /* the number of each thread's next record, from 0 */
	uint64_t wrong;
};

static inline void check_record(struct check *check, const uint64_t *word)
{
	uint64_t from = word[0] >> 40, number = word[0] & 0xffffffffff, bits = 0;

	for (uint64_t i = 1; i < check->words; i++)
		bits |= word[i] ^ ((word[0] * 8 + i) * ODD >> 1 | 1);
	check->wrong += from >= check->threads || ++check->next[from] != number || bits;
}

static inline uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* Takes the records that are ready, up to `most`, and returns how many; does not wait. */
typedef uint64_t take_some(void *ring, uint64_t *records, uint64_t most);

/* Take and verify `count` records; how many came until nothing has come for `limit` ns. */
static inline __attribute__((always_inline)) uint64_t take_all(take_some *some, uint64_t batch,
							       void *ring, uint64_t count,
							       uint64_t limit, struct check *check)
{
	uint64_t records[256 * WORDS_MAX], done = 0, last = now();

	while (done < count) {
		uint64_t left = count - done, n = some(ring, records, left < batch ? left : batch);

		if (!n && now() - last > limit)
			break;
		if (!n)
			continue;
		for (uint64_t i = 0; i < n; i++)
			check_record(check, records + i * check->words);
		done += n;
		last = now();
	}
	return done;
}

/* Stores a number for the kernel, which answers it by a record. */
typedef void tell_kernel(void *token, uint64_t number);

/* Play `rounds` after the first `done`, for the ns of each; how many were answered in `limit`. */
static inline __attribute__((always_inline)) uint64_t play_rounds(tell_kernel *tell, void *token,
								  take_some *some, void *ring,
								  uint64_t done, uint64_t rounds,
								  uint64_t limit, uint64_t *samples,
								  struct check *check)
{
	for (uint64_t round = 0; round < rounds; round++) {
		uint64_t record[WORDS_MAX], begun = now();

		tell(token, done + round + 1);
		while (!some(ring, record, 1))
			if (now() - begun > limit)
				return round;
		samples[round] = now() - begun;
		check_record(check, record);
	}
	return rounds;
}

#endif
