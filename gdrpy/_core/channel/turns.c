/* SPDX-License-Identifier: MIT */
#include "channel/turns.h"

#include "common/wait.h"

/* Looks at a turn of another producer, which takes a few microseconds, before the caller waits. */
#define LOOKS 200

void core_turns_join(struct core_turns *turns, struct core_ring_producer *producer, char *host,
		     uint64_t number)
{
	uint64_t *words = (uint64_t *)(host + CORE_RING_TURNS);

	*turns = (struct core_turns){.holder = words, .pushed = words + 1, .number = number};
	/* Of two times, between which others may push and pop: the first push holds them together.
	 */
	producer->head = core_ring_popped(&producer->ring);
	producer->tail = core_ring_pushed(&producer->ring);
}

/* The tail, as the last turn that was not left has told. */
static uint64_t counted(const struct core_turns *turns)
{
	return __atomic_load_n(turns->pushed, __ATOMIC_RELAXED);
}

/* Take a turn; *left says whether the one before it was left. */
static bool take(const struct core_turns *turns, bool *left)
{
	for (int i = 0; i < LOOKS; i++) {
		uint64_t found = __atomic_load_n(turns->holder, __ATOMIC_RELAXED);

		if (found == CORE_TURN_FREE || found == CORE_TURN_LEFT) {
			*left = found == CORE_TURN_LEFT;
			if (__atomic_compare_exchange_n(turns->holder, &found, turns->number, false,
							__ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
				return true;
		}
		core_relax();
	}
	return false;
}

/* Go on at the tail that the others have reached. */
static void catch_up(const struct core_turns *turns, struct core_ring_producer *producer, bool left)
{
	const struct core_ring *ring = &producer->ring;
	uint64_t tail = left ? core_ring_pushed(ring) : counted(turns);

	/* The tail only grows, and never passes the head by more than the ring holds. */
	if (tail - producer->tail > INT64_MAX) {
		producer->broken = true;
		return;
	}
	producer->tail = tail;
	if (tail - producer->head > ring->capacity)
		core_ring_room(producer);
	if (producer->tail - producer->head > ring->capacity)
		producer->broken = true;
}

uint64_t core_turns_push(const struct core_turns *turns, struct core_ring_producer *producer,
			 const char *records, uint64_t count)
{
	uint64_t own = turns->number;
	bool left;

	if (producer->broken || !take(turns, &left)) {
		/* No turn of this producer lasts when it begins another. */
		if (core_turns_holder(turns) == own)
			producer->broken = true;
		return 0;
	}
	catch_up(turns, producer, left);
	count = producer->broken ? 0 : core_ring_push(producer, records, count);
	if (!producer->broken)
		__atomic_store_n(turns->pushed, producer->tail, __ATOMIC_RELAXED);
	/* Unless the turn was ended meanwhile, as by a broker that takes this process for dead. */
	if (!__atomic_compare_exchange_n(turns->holder, &own,
					 producer->broken ? CORE_TURN_LEFT : CORE_TURN_FREE, false,
					 __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		producer->broken = true;
	return count;
}

bool core_turns_may_push(const struct core_turns *turns, const struct core_ring *ring)
{
	uint64_t holder = __atomic_load_n(turns->holder, __ATOMIC_ACQUIRE);

	if (holder == CORE_TURN_LEFT || holder == turns->number)
		return true;
	return holder == CORE_TURN_FREE &&
	       counted(turns) - core_ring_popped(ring) != ring->capacity;
}

uint64_t core_turns_holder(const struct core_turns *turns)
{
	uint64_t holder = __atomic_load_n(turns->holder, __ATOMIC_ACQUIRE);

	return holder == CORE_TURN_LEFT ? CORE_TURN_FREE : holder;
}

bool core_turns_taken(const struct core_turns *turns)
{
	uint64_t holder = core_turns_holder(turns);

	return holder != CORE_TURN_FREE && holder != turns->number;
}

void core_turns_free(const struct core_turns *turns, uint64_t number)
{
	if (number == CORE_TURN_FREE || number == CORE_TURN_LEFT)
		return;
	__atomic_compare_exchange_n(turns->holder, &number, CORE_TURN_LEFT, false, __ATOMIC_ACQ_REL,
				    __ATOMIC_RELAXED);
}

uint64_t core_turns_pushed(const struct core_turns *turns, const struct core_ring *ring)
{
	bool known = __atomic_load_n(turns->holder, __ATOMIC_ACQUIRE) == CORE_TURN_FREE;

	return known ? counted(turns) : core_ring_pushed(ring);
}
