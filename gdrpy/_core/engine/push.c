/* SPDX-License-Identifier: MIT */
/* Submissions: pieces of work as methods, a ring entry for them, and the doorbell. */
#include "copy/copy.h"
#include "engine/methods.h"
#include "engine/private.h"

/* The words of the largest piece, and of the end of a submission. */
#define PIECE_WORDS 11
#define END_WORDS 8
_Static_assert((CORE_ENTRY_PIECES * PIECE_WORDS + END_WORDS) * sizeof(uint32_t) <= CORE_PUSH_NBYTES,
	       "a ring entry's pieces fit its part of the pushbuffer");

/* Release a semaphore when all transfers before are done. */
#define SEMAPHORE_LAUNCH (CORE_LAUNCH_FLUSH | CORE_LAUNCH_SEMAPHORE)

/* Where the next word of a pushbuffer goes. */
struct pen {
	volatile uint32_t *begin, *at;
};

static void put(struct pen *pen, uint32_t word)
{
	*pen->at++ = word;
}

static void put_method(struct pen *pen, uint32_t method, uint32_t count)
{
	put(pen, core_method_header(CORE_COPY_SUBCHANNEL, method, count));
}

static void put_address(struct pen *pen, uint64_t address)
{
	put(pen, (uint32_t)(address >> 32));
	put(pen, (uint32_t)address);
}

static void put_launch(struct pen *pen, uint32_t launch)
{
	put_method(pen, CORE_LAUNCH, 1);
	put(pen, launch);
}

static void put_semaphore(struct pen *pen, uint64_t address, uint32_t value)
{
	put_method(pen, CORE_SET_SEMAPHORE, 3);
	put_address(pen, address);
	put(pen, value);
}

static void put_piece(struct pen *pen, const struct core_engine_piece *piece, uint32_t launch)
{
	switch (piece->kind) {
	case CORE_PIECE_WAIT:
		put(pen, core_method_header(CORE_HOST_SUBCHANNEL, CORE_ACQUIRE, 5));
		put(pen, (uint32_t)piece->to);
		put(pen, (uint32_t)(piece->to >> 32));
		put(pen, piece->value);
		put(pen, 0);
		put(pen, CORE_ACQUIRE_AT_LEAST);
		return;
	case CORE_PIECE_SET:
		put_semaphore(pen, piece->to, piece->value);
		put_launch(pen, SEMAPHORE_LAUNCH);
		return;
	case CORE_PIECE_COPY:
		put_method(pen, CORE_SET_SOURCE, 4);
		put_address(pen, piece->from);
		put_address(pen, piece->to);
		put_method(pen, CORE_SET_LENGTH, 1);
		put(pen, piece->nbytes);
		break;
	case CORE_PIECE_LINES:
		launch |= CORE_LAUNCH_LINES;
		put_method(pen, CORE_SET_SOURCE, 8);
		put_address(pen, piece->from);
		put_address(pen, piece->to);
		put(pen, piece->from_pitch);
		put(pen, piece->to_pitch);
		put(pen, piece->nbytes);
		put(pen, piece->lines);
		break;
	case CORE_PIECE_FILL:
		launch |= CORE_LAUNCH_FILL;
		put_method(pen, CORE_SET_FILL, 2);
		put(pen, piece->value);
		put(pen, piece->words ? CORE_FILL_WORDS : CORE_FILL_BYTES);
		put_method(pen, CORE_SET_TARGET, 2);
		put_address(pen, piece->to);
		put_method(pen, CORE_SET_LENGTH, 1);
		put(pen, piece->nbytes);
		break;
	}
	put_launch(pen, launch | CORE_LAUNCH_LINEAR);
}

/* A single transfer releases the semaphore itself; after other pieces, a launch does. */
static void put_pieces(struct pen *pen, const struct core_channel *channel,
		       const struct core_engine_piece *pieces, unsigned int count, uint32_t value)
{
	const uint64_t semaphore = channel->semaphore_page.va;
	const uint32_t end =
		SEMAPHORE_LAUNCH | (pieces[count - 1].interrupts ? CORE_LAUNCH_INTERRUPT : 0);

	if (count == 1 && pieces->kind <= CORE_PIECE_FILL) {
		put_semaphore(pen, semaphore, value);
		put_piece(pen, pieces, CORE_LAUNCH_IN_ORDER | end);
		return;
	}
	for (unsigned int i = 0; i < count; i++)
		put_piece(pen, &pieces[i],
			  i && !pieces[i].in_order ? CORE_LAUNCH_PIPELINED : CORE_LAUNCH_IN_ORDER);
	put_semaphore(pen, semaphore, value);
	put_launch(pen, end);
}

/*
 * Submit what fits one ring entry, with the channel's lock held. An entry is used again when the
 * one after it is done, so that the ring never looks empty because it is full.
 */
static int submit(struct core_channel *channel, const struct core_engine_piece *pieces,
		  unsigned int count, struct core_error *error)
{
	const uint32_t entry = channel->put, next = (entry + 1) % CORE_RING_ENTRIES;
	const size_t at = 2 * CORE_PAGE + entry * CORE_PUSH_NBYTES;
	char *control = channel->control.host;
	struct pen pen;

	if (core_channel_wait(channel, channel->values[next], error))
		return -1;
	pen.begin = pen.at = (volatile uint32_t *)(control + at);
	if (!channel->last) {
		put_method(&pen, CORE_SET_OBJECT, 1);
		put(&pen, channel->link->copy_class);
	}
	channel->values[entry] = ++channel->last;
	put_pieces(&pen, channel, pieces, count, channel->last);
	((volatile uint64_t *)control)[entry] =
		core_ring_entry(channel->control.va + at, (uint32_t)(pen.at - pen.begin));
	channel->put = next;
	/* The GPU must find each of these in its memory before it hears of it by the next. */
	core_store_fence();
	*(volatile uint32_t *)(control + CORE_PAGE + CORE_USERD_PUT) = next;
	core_store_fence();
	/* Nor may it overwrite what the CPU still reads: a store fence alone orders no loads. */
	__atomic_store_n(channel->link->doorbell, channel->token, __ATOMIC_RELEASE);
	core_store_fence(); /* in BAR1, the doorbell may be write-combining */
	return 0;
}

unsigned int core_channel_entries(unsigned int pieces)
{
	return (pieces + CORE_ENTRY_PIECES - 1) / CORE_ENTRY_PIECES;
}

int core_channel_submit(struct core_channel *channel, const struct core_engine_piece *pieces,
			unsigned int count, uint32_t *value, struct core_error *error)
{
	int ret = 0;

	pthread_mutex_lock(&channel->lock);
	for (unsigned int some; count && !ret; pieces += some, count -= some) {
		some = count < CORE_ENTRY_PIECES ? count : CORE_ENTRY_PIECES;
		ret = submit(channel, pieces, some, error);
	}
	*value = channel->last;
	pthread_mutex_unlock(&channel->lock);
	return ret;
}
