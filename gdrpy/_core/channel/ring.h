/* SPDX-License-Identifier: MIT */
/*
 * The ring of a channel, from both ends: docs/channel.md has the protocol. No end takes a lock, and
 * either may stop at any instruction for ever: the other end sees whole records, or none.
 */
#ifndef GDRPY_CHANNEL_RING_H
#define GDRPY_CHANNEL_RING_H

#include <stdint.h>

#include "copy/copy.h"
#include "gdrpy/channel.h"

/* Where things lie in the GPU memory, and what it takes. */
#define CORE_RING_TAIL 128
#define CORE_RING_CLOSED 136
#define CORE_RING_RECORDS 256

/* And in the host memory: apart, since the consumer stores the one often and the other once. */
#define CORE_RING_HEAD 0
#define CORE_RING_STOPPED 128
#define CORE_RING_HOST_NBYTES 256

#define CORE_RING_RECORD_UNIT 16

struct core_ring {
	enum core_mapping_kind type; /* of the mapping of the GPU memory */
	char *records;
	uint64_t *tail, *closed;
	uint64_t *head, *stopped;
	uint64_t record_nbytes, capacity;
};

/* The ring in `memory` and `host`, as this process has mapped them. */
void core_ring_place(struct core_ring *ring, enum core_mapping_kind type, char *memory, char *host,
		     uint64_t record_nbytes, uint64_t capacity);

/* Begin it: zero the words, and write what a kernel reads; at these addresses the GPU has both. */
void core_ring_begin(const struct core_ring *ring, char *memory, uint64_t memory_ptr,
		     uint64_t host_ptr);

struct core_ring_producer {
	struct core_ring ring;
	uint64_t tail; /* records pushed */
	uint64_t head; /* taken, as of the last look */
	bool broken;   /* the consumer's counter was one that no consumer gives */
};

/* How many records there is room for now, by a new look; none in a broken ring. */
uint64_t core_ring_room(struct core_ring_producer *producer);

/* Whether the consumer has taken records since that look. */
bool core_ring_moved(const struct core_ring_producer *producer);

/* Push the first of `count` records, as many as there is room for; returns how many. */
uint64_t core_ring_push(struct core_ring_producer *producer, const char *records, uint64_t count);

/* Counters as they are now. */
uint64_t core_ring_popped(const struct core_ring *ring);
bool core_ring_stopped(const struct core_ring *ring);

void core_ring_close(const struct core_ring *ring);

struct core_ring_consumer {
	struct core_ring ring;
	uint64_t head; /* records taken */
	uint64_t tail; /* pushed, as of the last look */
	bool broken;   /* the producer's counter was one that no producer gives */
};

/* Go on where the last consumer has left off. */
void core_ring_consumer_begin(struct core_ring_consumer *consumer);

/*
 * How many records are there, by a new look if the last one found fewer than are wanted; none in a
 * broken ring.
 */
uint64_t core_ring_ready(struct core_ring_consumer *consumer, uint64_t wanted);

/* Whether there is anything for it: a record, or the end. */
bool core_ring_has_news(const struct core_ring_consumer *consumer);

/* Take `count` records that are ready, and make room of them. */
void core_ring_take(struct core_ring_consumer *consumer, char *records, uint64_t count);

/* Whether every record was taken and none will come. */
bool core_ring_ended(struct core_ring_consumer *consumer);

void core_ring_stop(const struct core_ring *ring);

#endif
