/* SPDX-License-Identifier: MIT */
#include "channel/requests.h"

#include "channel/inbox.h"

_Static_assert(sizeof(struct gdr_link) == 96, "struct gdr_link is part of the protocol");
_Static_assert(sizeof(struct gdr_link) <= CORE_LINK_TAKEN, "the words follow the descriptor");

/* Bytes of a record that are stamped before they are copied: a slot's words take twice as many. */
#define CHUNK_NBYTES 512

static unsigned long long *word(unsigned long long address)
{
	return (unsigned long long *)(uintptr_t)address;
}

/* From a request's slot to its copy; 0 if the ring has none. */
static uint64_t twin_offset(const struct gdr_slots *slots)
{
	return CORE_SLOT_FACTOR * slots->record_nbytes * slots->capacity <= CORE_LINK_PAGE
		       ? CORE_LINK_PAGE
		       : 0;
}

void core_requests_place(struct core_requests *requests, enum core_mapping_kind type, char *memory,
			 char *host)
{
	requests->type = type;
	requests->link.requests.address = (uintptr_t)memory + CORE_LINK_REQUESTS;
	requests->link.twin =
		requests->link.requests.address + twin_offset(&requests->link.requests);
	requests->link.answers.address = (uintptr_t)host + CORE_LINK_ANSWERS;
	requests->link.end = (uintptr_t)memory + CORE_LINK_END;
	requests->link.taken = (uintptr_t)memory + CORE_LINK_TAKEN;
	requests->link.stopped = (uintptr_t)host + CORE_LINK_STOPPED;
	requests->told = (unsigned long long *)(host + CORE_LINK_PUSHED);
}

struct gdr_link core_requests_described(const struct core_requests *requests, uint64_t memory_ptr,
					uint64_t host_ptr)
{
	struct gdr_link described = {
		.magic = GDR_LINK_MAGIC,
		.version = GDR_LINK_VERSION,
		.requests = requests->link.requests,
		.answers = requests->link.answers,
		.end = memory_ptr + CORE_LINK_END,
		.taken = memory_ptr + CORE_LINK_TAKEN,
		.stopped = host_ptr + CORE_LINK_STOPPED,
	};

	described.requests.address = memory_ptr + CORE_LINK_REQUESTS;
	described.twin = described.requests.address + twin_offset(&described.requests);
	described.answers.address = host_ptr + CORE_LINK_ANSWERS;
	return described;
}

/* The slots of each copy of the requests. Returns how many there are. */
static unsigned int find_copies(const struct core_requests *requests, struct gdr_slots copies[2])
{
	copies[0] = copies[1] = requests->link.requests;
	copies[1].address = requests->link.twin;
	return copies[1].address == copies[0].address ? 1 : 2;
}

void core_requests_begin(const struct core_requests *requests, char *memory, uint64_t memory_ptr,
			 uint64_t host_ptr)
{
	struct gdr_link described = core_requests_described(requests, memory_ptr, host_ptr);
	struct gdr_slots copies[2];
	unsigned int count = find_copies(requests, copies);

	core_slots_clear(CORE_MAPPING_CACHED, &requests->link.answers);
	for (unsigned int i = 0; i < count; i++)
		core_slots_clear(requests->type, &copies[i]);
	core_copy_to(requests->type, memory, &described, sizeof(described));
	*requests->told = 0;
	gdr_publish(word(requests->link.stopped), 0);
	gdr_publish(word(requests->link.end), 0);
	gdr_publish(word(requests->link.taken), 0);
}

/* Through words on the stack, as write-combined memory takes whole lines best. */
static void copy_stamped(const struct core_requests *requests, const char *record)
{
	const struct gdr_slots *slots = &requests->link.requests;
	uint64_t stamp = gdr_slot_stamp(slots, requests->pushed);
	uint64_t twin = requests->link.twin - slots->address;
	char *slot = (char *)(uintptr_t)gdr_slot_address(slots, requests->pushed, 0);
	_Alignas(64) uint64_t words[CHUNK_NBYTES / 4];

	for (size_t at = 0; at < slots->record_nbytes; at += CHUNK_NBYTES) {
		size_t left = slots->record_nbytes - at;
		size_t nbytes = left < CHUNK_NBYTES ? left : CHUNK_NBYTES;

		for (size_t i = 0; i < nbytes / 4; i++) {
			uint32_t half;

			memcpy(&half, record + at + 4 * i, sizeof(half));
			words[i] = stamp | half;
		}
		core_copy_to(requests->type, slot + 2 * at, words, 2 * nbytes);
		if (twin)
			core_copy_to(requests->type, slot + twin + 2 * at, words, 2 * nbytes);
	}
}

/* In ordinary memory, where a copy may be torn. */
static void put_stamped(const struct core_requests *requests, const char *record)
{
	struct gdr_slots copies[2];
	unsigned int count = find_copies(requests, copies);

	for (unsigned int i = 0; i < count; i++)
		gdr_slot_put(&copies[i], requests->pushed, record);
}

void core_requests_push(struct core_requests *requests, const char *record)
{
	core_store_fence(); /* whoever has a word of it sees all earlier stores */
	if (requests->type == CORE_MAPPING_CACHED)
		put_stamped(requests, record);
	else
		copy_stamped(requests, record);
	core_store_fence();
	requests->pushed++;
	__atomic_store_n(requests->told, requests->pushed, __ATOMIC_RELEASE);
}

/*
 * Complete a copy of a request from the other one, which is whole. If its caller lives, it may have
 * pushed the next request into the slot by now: newer words stay.
 */
static void complete(const struct gdr_slots *to, const struct gdr_slots *from, uint64_t number)
{
	unsigned long long target = gdr_slot_address(to, number, 0);
	unsigned long long source = gdr_slot_address(from, number, 0);
	uint64_t stamp = gdr_slot_stamp(to, number);

	for (uint64_t at = 0; at < 2 * to->record_nbytes; at += 8) {
		uint64_t found = gdr_load(source + at);

		if (found >> 32 == stamp >> 32 &&
		    (int32_t)((gdr_load(target + at) - stamp) >> 32) < 0)
			gdr_store(target + at, found);
	}
	core_store_fence();
}

/* Whether a copy of a request is whole. The other one is completed. */
static bool is_whole(const struct core_requests *requests, uint64_t number)
{
	struct gdr_slots copies[2];
	unsigned int count = find_copies(requests, copies);

	for (unsigned int i = 0; i < count; i++) {
		if (!gdr_slot_get(&copies[i], number, NULL))
			continue;
		if (count == 2)
			complete(&copies[1 - i], &copies[i], number);
		return true;
	}
	return false;
}

uint64_t core_requests_count(const struct core_requests *requests)
{
	uint64_t told = __atomic_load_n(requests->told, __ATOMIC_ACQUIRE);

	return told + (uint64_t)is_whole(requests, told);
}

void core_requests_close(const struct core_requests *requests, uint64_t pushed)
{
	gdr_publish(word(requests->link.end), pushed + 1 ? pushed + 1 : 1);
}

void core_requests_open(const struct core_requests *requests)
{
	gdr_publish(word(requests->link.end), 0);
}

/* Remove the words of a record that was not stored to its end. */
static void remove_part(const struct gdr_slots *slots, uint64_t number)
{
	unsigned long long address = gdr_slot_address(slots, number, 0);
	uint64_t stamp = gdr_slot_stamp(slots, number);

	for (uint64_t at = 0; at < 2 * slots->record_nbytes; at += 8)
		if (gdr_load(address + at) >> 32 == stamp >> 32)
			gdr_store(address + at, gdr_slot_stamp(slots, number - slots->capacity));
}

void core_requests_clear_next(const struct core_requests *requests)
{
	uint64_t number = core_requests_count(requests);
	struct gdr_slots copies[2];
	unsigned int count = find_copies(requests, copies);

	for (unsigned int i = 0; i < count; i++)
		remove_part(&copies[i], number);
	core_store_fence();
	remove_part(&requests->link.answers, number);
	if (gdr_load_acquire(requests->link.taken) > number)
		gdr_publish(word(requests->link.taken), number);
}

uint64_t core_requests_take_over(const struct core_requests *requests)
{
	const struct gdr_slots *answers = &requests->link.answers;
	uint64_t pushed = core_requests_count(requests);
	uint64_t first = pushed > answers->capacity ? pushed - answers->capacity : 0;
	uint64_t begin = gdr_load_acquire(requests->link.taken);

	/* The others before were answered; and a server need not tell what it has taken. */
	if (begin < first || begin > pushed)
		begin = first;
	for (uint64_t number = begin; number < pushed; number++)
		if (gdr_slot_get(answers, number, NULL))
			begin = number + 1;
	for (uint64_t number = begin; number < pushed; number++)
		remove_part(answers, number);
	gdr_publish(word(requests->link.taken), begin);
	return begin;
}

bool core_requests_stopped(const struct core_requests *requests)
{
	return gdr_load_acquire(requests->link.stopped) != 0;
}
