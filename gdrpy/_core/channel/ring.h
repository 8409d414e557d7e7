/* SPDX-License-Identifier: MIT */
/*
 * The ring of a channel, from both ends. docs/channel-protocol.md describes the protocol. Neither
 * end takes a lock. Either may stop forever at any instruction; the other still sees only whole
 * records.
 */
#ifndef GDRPY_CHANNEL_RING_H
#define GDRPY_CHANNEL_RING_H

#include <stdint.h>

#include "copy/copy.h"
#include "gdrpy/channel.h"

/* Offsets in the GPU memory. */
#define CORE_RING_TAIL 128
#define CORE_RING_CLOSED 136
#define CORE_RING_RECORDS 256

/* Offsets in the host memory, apart because the consumer stores the head often, `stopped` once. */
#define CORE_RING_HEAD 0
#define CORE_RING_STOPPED 128
/*
 * Of a named channel alone: what its producers share, and which of them closed it last, 0 if
 * another has begun.
 */
#define CORE_RING_TURNS 64
#define CORE_RING_CLOSER 192
#define CORE_RING_HOST_NBYTES 256

#define CORE_RING_RECORD_UNIT 16
#define CORE_RING_RECORD_MAX (64 * 1024)

struct core_ring {
	enum core_mapping_kind type; /* of the GPU memory's mapping */
	char *records;
	uint64_t *tail, *closed;
	uint64_t *head, *stopped;
	uint64_t record_nbytes, capacity;
};

/* Lay the ring out in `memory` and `host`, this process's mappings. */
void core_ring_place(struct core_ring *ring, enum core_mapping_kind type, char *memory, char *host,
		     uint64_t record_nbytes, uint64_t capacity);

/* The descriptor for kernels. The two addresses are the GPU's. */
struct gdr_channel core_ring_described(const struct core_ring *ring, uint64_t memory_ptr,
				       uint64_t host_ptr);

/* Zero the words, and write the descriptor that kernels read. The two addresses are the GPU's. */
void core_ring_begin(const struct core_ring *ring, char *memory, uint64_t memory_ptr,
		     uint64_t host_ptr);

struct core_ring_producer {
	struct core_ring ring;
	uint64_t tail; /* records pushed */
	uint64_t head; /* records taken, as last read */
	bool broken;   /* the consumer's counter had an impossible value */
};

/* Reread the head, and return how many records fit; 0 in a broken ring. */
uint64_t core_ring_room(struct core_ring_producer *producer);

/* Whether the consumer has taken records since the head was last read. */
bool core_ring_moved(const struct core_ring_producer *producer);

/* Push as many of `count` records as fit, and return how many. */
uint64_t core_ring_push(struct core_ring_producer *producer, const char *records, uint64_t count);

/* Read the producer's word, and the consumer's. */
uint64_t core_ring_pushed(const struct core_ring *ring);
uint64_t core_ring_popped(const struct core_ring *ring);
bool core_ring_stopped(const struct core_ring *ring);

/* Tell the consumer whether more records may come. */
void core_ring_set_closed(const struct core_ring *ring, bool closed);

struct core_ring_consumer {
	struct core_ring ring;
	uint64_t head; /* records taken */
	uint64_t tail; /* records pushed, as last read */
	bool broken;   /* the producer's counter had an impossible value */
};

/* Continue where the last consumer stopped. */
void core_ring_consumer_begin(struct core_ring_consumer *consumer);

/*
 * How many records are ready; 0 in a broken ring. Rereads the tail if fewer than `wanted` are
 * known.
 */
uint64_t core_ring_ready(struct core_ring_consumer *consumer, uint64_t wanted);

/* Whether a record or the end has arrived. */
bool core_ring_has_news(const struct core_ring_consumer *consumer);

/* Take `count` ready records, and free their slots. */
void core_ring_take(struct core_ring_consumer *consumer, char *records, uint64_t count);

/* Whether all records were taken and no more will come. */
bool core_ring_ended(struct core_ring_consumer *consumer);

/* Tell the producer whether no more records will be taken. */
void core_ring_set_stopped(const struct core_ring *ring, bool stopped);

#endif
