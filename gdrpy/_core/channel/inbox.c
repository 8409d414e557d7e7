/* SPDX-License-Identifier: MIT */
#include "channel/inbox.h"

_Static_assert(sizeof(struct gdr_inbox) == 64, "struct gdr_inbox is part of the protocol");

void core_slots_clear(enum core_mapping_kind type, const struct gdr_slots *slots)
{
	static const char zeros[4096];
	char *at = (char *)(uintptr_t)slots->address;
	uint64_t left = CORE_SLOT_FACTOR * slots->record_nbytes * slots->capacity;

	while (left) {
		uint64_t nbytes = left < sizeof(zeros) ? left : sizeof(zeros);

		core_copy_to(type, at, zeros, nbytes);
		at += nbytes;
		left -= nbytes;
	}
}

void core_inbox_place(struct gdr_inbox_reader *reader, char *memory, char *host)
{
	reader->slots.address = (uintptr_t)host + CORE_INBOX_SLOTS;
	reader->taken = (unsigned long long *)(memory + CORE_INBOX_TAKEN);
	reader->end = (unsigned long long *)(host + CORE_INBOX_END);
	reader->head = (unsigned long long *)(host + CORE_INBOX_HEAD);
}

struct gdr_inbox core_inbox_described(const struct gdr_inbox_reader *reader, uint64_t memory_ptr,
				      uint64_t host_ptr)
{
	struct gdr_inbox inbox = {
		.magic = GDR_INBOX_MAGIC,
		.version = GDR_INBOX_VERSION,
		.slots = reader->slots,
		.reserved = memory_ptr + CORE_INBOX_RESERVED,
		.taken = memory_ptr + CORE_INBOX_TAKEN,
		.end = host_ptr + CORE_INBOX_END,
	};

	inbox.slots.address = host_ptr + CORE_INBOX_SLOTS;
	return inbox;
}

void core_inbox_begin(struct gdr_inbox_reader *reader, enum core_mapping_kind type, char *memory,
		      char *host, uint64_t memory_ptr, uint64_t host_ptr)
{
	struct gdr_inbox inbox = core_inbox_described(reader, memory_ptr, host_ptr);

	core_inbox_place(reader, memory, host);
	core_slots_clear(CORE_MAPPING_CACHED, &reader->slots);
	*reader->end = *reader->head = 0;
	core_copy_to(type, memory, &inbox, sizeof(inbox));
	gdr_publish((unsigned long long *)(memory + CORE_INBOX_RESERVED), 0);
	gdr_inbox_begin(reader);
}

/* In the same GPU memory as `taken`. */
static unsigned long long *reserved_of(const struct gdr_inbox_reader *reader)
{
	return (unsigned long long *)((char *)reader->taken - CORE_INBOX_TAKEN +
				      CORE_INBOX_RESERVED);
}

uint64_t core_inbox_reserved(const struct gdr_inbox_reader *reader)
{
	return __atomic_load_n(reserved_of(reader), __ATOMIC_ACQUIRE);
}

void core_inbox_pass(struct gdr_inbox_reader *reader, uint64_t settled)
{
	uint64_t number = reader->popped;

	/* There was no room for numbers beyond the capacity, so they have no records. */
	while (number < settled && number - reader->popped < reader->slots.capacity &&
	       !gdr_slot_get(&reader->slots, number, NULL))
		number++;
	if (number < settled && number - reader->popped == reader->slots.capacity)
		number = settled;
	if (number == reader->popped)
		return;
	reader->popped = reader->told = number;
	__atomic_store_n(reader->head, number, __ATOMIC_RELEASE);
	gdr_publish(reader->taken, number);
}

void core_inbox_end_reading(const struct gdr_inbox_reader *reader)
{
	gdr_publish(reader->taken,
		    __atomic_load_n(reader->taken, __ATOMIC_ACQUIRE) | GDR_INBOX_CLOSED);
}

/* Attempts: no kernel fills the ring, so a reader soon comes to its end. */
#define ATTEMPTS 100000

bool core_inbox_give_room(const struct gdr_inbox_reader *reader)
{
	/* The reader stores its head first, so nothing that it told before is more than this. */
	for (int i = 0; i < ATTEMPTS; i++) {
		uint64_t head = __atomic_load_n(reader->head, __ATOMIC_ACQUIRE);

		if (head & GDR_INBOX_CLOSED)
			return false;
		gdr_publish(reader->taken, head);
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
		if (__atomic_load_n(reader->head, __ATOMIC_ACQUIRE) == head)
			return true;
	}
	return false;
}

void core_inbox_writer_begin(struct core_inbox_writer *writer,
			     const struct gdr_inbox_reader *reader, char *memory)
{
	writer->inbox = (struct gdr_inbox){
		.slots = reader->slots,
		.reserved = (uintptr_t)memory + CORE_INBOX_RESERVED,
		.taken = (uintptr_t)reader->taken,
		.end = (uintptr_t)reader->end,
	};
	writer->reserved = gdr_load_acquire(writer->inbox.reserved);
	writer->taken = 0;
}

uint64_t core_inbox_push(struct core_inbox_writer *writer, const char *records, uint64_t count)
{
	const struct gdr_slots *slots = &writer->inbox.slots;
	uint64_t taken, room;

	if (writer->reserved - writer->taken + count > slots->capacity) {
		taken = gdr_load_acquire(writer->inbox.taken);
		if (taken & GDR_INBOX_CLOSED)
			return 0;
		if (writer->reserved - taken > slots->capacity)
			writer->broken = true;
		if (writer->broken)
			return 0;
		writer->taken = taken;
	}
	room = slots->capacity - (writer->reserved - writer->taken);
	if (count > room)
		count = room;
	/* No atomic: across the bus there is none, and there is no other producer meanwhile. */
	gdr_publish((unsigned long long *)(uintptr_t)writer->inbox.reserved,
		    writer->reserved + count);
	for (uint64_t i = 0; i < count; i++)
		gdr_slot_put(slots, writer->reserved + i, records + i * slots->record_nbytes);
	writer->reserved += count;
	return count;
}

bool core_inbox_moved(const struct core_inbox_writer *writer)
{
	return gdr_load_acquire(writer->inbox.taken) != writer->taken;
}
