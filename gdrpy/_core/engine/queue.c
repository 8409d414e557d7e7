/* SPDX-License-Identifier: MIT */
/* Queues: channels that wait for words in GPU memory by themselves. */
#include <errno.h>
#include <stdlib.h>

#include "engine/private.h"

/* The ring entries that may be in flight. */
#define MOST_ENTRIES (CORE_RING_ENTRIES - 1)

struct core_queue {
	struct core_engine *engine;
	struct core_link *link; /* kept, even if the engine has lost it */
	struct core_channel channel;
	uint64_t submitted;		  /* ring entries; jobs are numbered by their last one's */
	pthread_mutex_t lock;		  /* guards the next three */
	struct core_engine_piece *pieces; /* not submitted yet */
	unsigned int count, room;
};

static int open_channel(struct core_engine *engine, void *job, struct core_error *error)
{
	struct core_queue *queue = job;

	if (core_channel_open(engine->link, &queue->channel, true, error))
		return -1;
	queue->link = engine->link;
	core_link_keep(queue->link);
	return 0;
}

struct core_queue *core_queue_open(struct core_engine_memory *memory, struct core_error *error)
{
	struct core_queue *queue = calloc(1, sizeof(*queue));

	if (!queue)
		return core_fail_malloc_null(error);
	queue->engine = memory->engine;
	pthread_mutex_init(&queue->lock, NULL);
	if (!core_engine_run(queue->engine, open_channel, queue, error))
		return queue;
	free(queue);
	return NULL;
}

void core_queue_close(struct core_queue *queue)
{
	if (core_engine_is_own(queue->engine)) {
		core_channel_close(&queue->channel);
		core_link_close(queue->link);
	}
	free(queue->pieces);
	free(queue);
}

static int add_piece(struct core_queue *queue, const struct core_engine_piece *piece,
		     struct core_error *error)
{
	unsigned int room = queue->room ? 2 * queue->room : 16;
	struct core_engine_piece *pieces = queue->pieces;

	if (core_channel_entries(queue->count + 1) > MOST_ENTRIES)
		return core_fail(error, CORE_FAILED_SIZE, EINVAL,
				 "the job has %u steps already: submit it, and add the rest to the "
				 "next one",
				 queue->count);
	if (queue->count == queue->room) {
		pieces = realloc(pieces, room * sizeof(*pieces));
		if (!pieces)
			return core_fail_malloc(error);
		queue->pieces = pieces;
		queue->room = room;
	}
	pieces[queue->count] = *piece;
	pieces[queue->count++].in_order = true;
	return 0;
}

static int add_word(struct core_queue *queue, const struct core_queue_step *step,
		    struct core_error *error)
{
	const struct core_side side = {step->memory, step->offset};
	uint64_t left = sizeof(uint32_t);
	struct core_engine_piece piece = {
		.kind = step->kind == CORE_STEP_WAIT ? CORE_PIECE_WAIT : CORE_PIECE_SET,
		.to = core_side_address(&side, 0, &left),
		.value = step->value,
	};

	if (piece.to % sizeof(uint32_t))
		return core_fail(error, CORE_FAILED_HANDLE, EINVAL,
				 "the word's address on the GPU is not aligned to 4 bytes");
	return add_piece(queue, &piece, error);
}

static int add_copy(struct core_queue *queue, struct core_side to, struct core_side from,
		    uint64_t nbytes, struct core_error *error)
{
	const unsigned int before = queue->count;
	struct core_engine_piece piece;

	for (uint64_t done = 0; done < nbytes;) {
		done += core_cut_copy(&to, &from, nbytes, done, &piece);
		if (add_piece(queue, &piece, error)) {
			queue->count = before;
			return -1;
		}
	}
	return 0;
}

struct adding {
	struct core_queue *queue;
	const struct core_queue_step *step;
	struct core_registration *registration; /* of its host memory; NULL without any */
	bool unpinned;				/* the driver refuses to pin that */
};

static int add_step(struct adding *adding, uint64_t host, struct core_error *error)
{
	const struct core_queue_step *step = adding->step;
	const struct core_side memory = {step->memory, step->offset}, other = {step->other, host};

	switch (step->kind) {
	case CORE_STEP_WRITE:
		return add_copy(adding->queue, memory, other, step->nbytes, error);
	case CORE_STEP_READ:
		return add_copy(adding->queue, other, memory, step->nbytes, error);
	default:
		return add_word(adding->queue, step, error);
	}
}

static int add(struct core_engine *engine, void *job, struct core_error *error)
{
	struct adding *adding = job;
	uint64_t host = 0;
	int ret;

	/* Addresses of another link's memory mean nothing in this one. */
	if (engine->link != adding->queue->link)
		return core_fail(error, CORE_FAILED_UNAVAILABLE, EIO,
				 "the copy engine was lost and made anew: open another queue");
	adding->unpinned =
		adding->registration &&
		!core_registration_reach(adding->registration, engine, adding->step->host, &host);
	if (adding->unpinned)
		return 0;
	pthread_mutex_lock(&adding->queue->lock);
	ret = add_step(adding, host, error);
	pthread_mutex_unlock(&adding->queue->lock);
	return ret;
}

static bool takes_host_memory(const struct core_queue_step *step)
{
	return (step->kind == CORE_STEP_WRITE || step->kind == CORE_STEP_READ) && !step->other;
}

int core_queue_add(struct core_queue *queue, const struct core_queue_step *step,
		   struct core_registration **registration, struct core_error *error)
{
	struct adding adding = {.queue = queue, .step = step};
	int ret;

	if (step->memory->engine != queue->engine ||
	    (step->other && step->other->engine != queue->engine))
		return core_fail(error, CORE_FAILED_HANDLE, EINVAL,
				 "the memory lies on another GPU than the queue's: open a queue "
				 "for each GPU");
	do {
		if (takes_host_memory(step)) {
			adding.registration = core_registration_hold(step->host, step->nbytes,
								     step->kind == CORE_STEP_WRITE);
			if (!adding.registration)
				return 1;
		}
		ret = core_engine_run(queue->engine, add, &adding, error);
		if (adding.registration && (ret || adding.unpinned)) {
			core_registration_let_go(adding.registration);
			adding.registration = NULL;
		}
	} while (!ret && adding.unpinned); /* another registration may hold the memory too */
	*registration = adding.registration;
	return ret;
}

static uint64_t done_of(const struct core_queue *queue)
{
	uint64_t submitted = __atomic_load_n(&queue->submitted, __ATOMIC_RELAXED);
	uint32_t seen = __atomic_load_n(queue->channel.semaphore, __ATOMIC_ACQUIRE);

	/* Other entries may have been submitted, and be done, since the first load. */
	return submitted + (uint64_t)(int64_t)(int32_t)(seen - (uint32_t)submitted);
}

bool core_queue_submit(struct core_queue *queue, uint64_t *number)
{
	struct core_error ignored;
	uint32_t value;
	bool room;

	pthread_mutex_lock(&queue->lock);
	*number = queue->submitted + core_channel_entries(queue->count);
	room = *number <= done_of(queue) + MOST_ENTRIES;
	if (room) {
		/* So this does not wait, and cannot fail. */
		core_channel_submit(&queue->channel, queue->pieces, queue->count, &value, &ignored);
		__atomic_store_n(&queue->submitted, *number, __ATOMIC_RELAXED);
		queue->count = 0;
	} else {
		*number -= MOST_ENTRIES;
	}
	pthread_mutex_unlock(&queue->lock);
	return room;
}

int core_queue_progress(const struct core_queue *queue, uint64_t *done, struct core_error *error)
{
	bool dead = __atomic_load_n(&queue->channel.notifier->status, __ATOMIC_ACQUIRE);

	/* Work done before the channel died counts. */
	*done = done_of(queue);
	return dead ? core_fail(
			      error, CORE_FAILED_CALL, EIO,
			      "the queue's channel died (Xid %u, see dmesg): close the queue, and "
			      "open another",
			      queue->channel.notifier->xid)
		    : 0;
}
