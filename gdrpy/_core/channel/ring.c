/* SPDX-License-Identifier: MIT */
#include "channel/ring.h"

_Static_assert(sizeof(struct gdr_channel) == 64, "struct gdr_channel is part of the protocol");
_Static_assert(sizeof(struct gdr_channel) <= CORE_RING_TAIL, "the words follow the descriptor");

static uint64_t word(const uint64_t *address)
{
	return __atomic_load_n(address, __ATOMIC_ACQUIRE);
}

/* Publish a word after all earlier stores, and push it out of the CPU's buffers. */
static void publish(uint64_t *address, uint64_t value)
{
	core_store_fence();
	__atomic_store_n(address, value, __ATOMIC_RELEASE);
	core_store_fence();
}

void core_ring_place(struct core_ring *ring, enum core_mapping_kind type, char *memory, char *host,
		     uint64_t record_nbytes, uint64_t capacity)
{
	*ring = (struct core_ring){
		.type = type,
		.records = memory + CORE_RING_RECORDS,
		.tail = (uint64_t *)(memory + CORE_RING_TAIL),
		.closed = (uint64_t *)(memory + CORE_RING_CLOSED),
		.head = (uint64_t *)(host + CORE_RING_HEAD),
		.stopped = (uint64_t *)(host + CORE_RING_STOPPED),
		.record_nbytes = record_nbytes,
		.capacity = capacity,
	};
}

struct gdr_channel core_ring_described(const struct core_ring *ring, uint64_t memory_ptr,
				       uint64_t host_ptr)
{
	return (struct gdr_channel){
		.magic = GDR_CHANNEL_MAGIC,
		.version = GDR_CHANNEL_VERSION,
		.record_nbytes = (unsigned int)ring->record_nbytes,
		.capacity = ring->capacity,
		.records = memory_ptr + CORE_RING_RECORDS,
		.tail = memory_ptr + CORE_RING_TAIL,
		.closed = memory_ptr + CORE_RING_CLOSED,
		.head = host_ptr + CORE_RING_HEAD,
		.stopped = host_ptr + CORE_RING_STOPPED,
	};
}

void core_ring_begin(const struct core_ring *ring, char *memory, uint64_t memory_ptr,
		     uint64_t host_ptr)
{
	struct gdr_channel channel = core_ring_described(ring, memory_ptr, host_ptr);

	core_copy_to(ring->type, memory, &channel, sizeof(channel));
	publish(ring->head, 0);
	publish(ring->stopped, 0);
	publish(ring->closed, 0);
	publish(ring->tail, 0);
}

/* The slot of a record. run() is how many of `count` records lie there before the ring wraps. */
static char *slot(const struct core_ring *ring, uint64_t index)
{
	return ring->records + (index & (ring->capacity - 1)) * ring->record_nbytes;
}

static uint64_t run(const struct core_ring *ring, uint64_t index, uint64_t count)
{
	uint64_t left = ring->capacity - (index & (ring->capacity - 1));

	return count < left ? count : left;
}

uint64_t core_ring_room(struct core_ring_producer *producer)
{
	uint64_t head = word(producer->ring.head);

	/* The head only grows, and never passes the tail. */
	if (head - producer->head > producer->tail - producer->head)
		producer->broken = true;
	if (producer->broken)
		return 0;
	producer->head = head;
	return producer->ring.capacity - (producer->tail - head);
}

bool core_ring_moved(const struct core_ring_producer *producer)
{
	return word(producer->ring.head) != producer->head;
}

uint64_t core_ring_push(struct core_ring_producer *producer, const char *records, uint64_t count)
{
	const struct core_ring *ring = &producer->ring;
	uint64_t room = ring->capacity - (producer->tail - producer->head);
	uint64_t first;

	if (room < count)
		room = core_ring_room(producer);
	if (count > room)
		count = room;
	if (!count)
		return 0;

	first = run(ring, producer->tail, count);
	core_copy_to(ring->type, slot(ring, producer->tail), records, first * ring->record_nbytes);
	if (first < count)
		core_copy_to(ring->type, ring->records, records + first * ring->record_nbytes,
			     (count - first) * ring->record_nbytes);
	producer->tail += count;
	publish(ring->tail, producer->tail);
	return count;
}

uint64_t core_ring_pushed(const struct core_ring *ring)
{
	return word(ring->tail);
}

uint64_t core_ring_popped(const struct core_ring *ring)
{
	return word(ring->head);
}

bool core_ring_stopped(const struct core_ring *ring)
{
	return word(ring->stopped) != 0;
}

void core_ring_set_closed(const struct core_ring *ring, bool closed)
{
	publish(ring->closed, closed);
}

void core_ring_consumer_begin(struct core_ring_consumer *consumer)
{
	consumer->head = consumer->tail = word(consumer->ring.head);
}

uint64_t core_ring_ready(struct core_ring_consumer *consumer, uint64_t wanted)
{
	uint64_t known = consumer->tail - consumer->head;
	uint64_t tail;

	if (known < wanted) {
		tail = word(consumer->ring.tail);
		core_load_fence(); /* read no record before the tail that covers it */
		/* The tail only grows, and only while the ring has room. */
		if (tail - consumer->tail > consumer->ring.capacity - known)
			consumer->broken = true;
		else
			consumer->tail = tail;
	}
	return consumer->broken ? 0 : consumer->tail - consumer->head;
}

bool core_ring_has_news(const struct core_ring_consumer *consumer)
{
	return word(consumer->ring.tail) != consumer->head || word(consumer->ring.closed);
}

void core_ring_take(struct core_ring_consumer *consumer, char *records, uint64_t count)
{
	const struct core_ring *ring = &consumer->ring;
	uint64_t first = run(ring, consumer->head, count);

	core_copy_from(ring->type, records, slot(ring, consumer->head),
		       first * ring->record_nbytes);
	if (first < count)
		core_copy_from(ring->type, records + first * ring->record_nbytes, ring->records,
			       (count - first) * ring->record_nbytes);
	consumer->head += count;
	__atomic_store_n(ring->head, consumer->head, __ATOMIC_RELEASE);
}

bool core_ring_ended(struct core_ring_consumer *consumer)
{
	/* Read the tail after `closed`: records pushed before the close still count. */
	bool closed = word(consumer->ring.closed) != 0;

	core_load_fence();
	return closed && core_ring_ready(consumer, 1) == 0 && !consumer->broken;
}

void core_ring_set_stopped(const struct core_ring *ring, bool stopped)
{
	__atomic_store_n(ring->stopped, stopped, __ATOMIC_RELEASE);
}
