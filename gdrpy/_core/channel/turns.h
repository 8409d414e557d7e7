/* SPDX-License-Identifier: MIT */
/*
 * Turns of several producers, threads of any processes, at the ring of a named channel. The lock is
 * a word in the shared host memory that holds the number of the producer whose turn it is. Records
 * count once the tail is published, so one that dies in its turn leaves none in part; another frees
 * the word. docs/channel-protocol.md describes the protocol.
 */
#ifndef GDRPY_CHANNEL_TURNS_H
#define GDRPY_CHANNEL_TURNS_H

#include "channel/ring.h"

/* What the lock word holds between turns: the second after a producer died in its turn. */
#define CORE_TURN_FREE 0
#define CORE_TURN_LEFT UINT64_MAX

struct core_turns {
	uint64_t *holder;
	uint64_t *pushed; /* the tail, in host memory; not right after CORE_TURN_LEFT */
	uint64_t number;  /* this producer's: no other has it, or had it before */
};

/* Take part, from the tail on that the others have reached. */
void core_turns_join(struct core_turns *turns, struct core_ring_producer *producer, char *host,
		     uint64_t number);

/* As core_ring_push(); pushes nothing either while another producer's turn lasts. */
uint64_t core_turns_push(const struct core_turns *turns, struct core_ring_producer *producer,
			 const char *records, uint64_t count);

/* Whether a push may succeed, or finds that the ring is broken. */
bool core_turns_may_push(const struct core_turns *turns, const struct core_ring *ring);

/* The number whose turn it is; 0 if it is none's. */
uint64_t core_turns_holder(const struct core_turns *turns);

/* Whether it is the turn of another producer. */
bool core_turns_taken(const struct core_turns *turns);

/* End the turn of a producer that is gone. */
void core_turns_free(const struct core_turns *turns, uint64_t number);

/* How many records were pushed by all producers: by a load over the bus unless no turn lasts. */
uint64_t core_turns_pushed(const struct core_turns *turns, const struct core_ring *ring);

#endif
