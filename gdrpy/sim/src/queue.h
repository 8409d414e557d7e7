/* SPDX-License-Identifier: MIT */
/*
 * Streams and their operations. A stream runs its operations in order of their numbers, each after
 * the points that it depends on are reached. A point is a position in a stream; events, the NULL
 * stream and synchronization are built on points.
 */
#ifndef GDRPY_SIM_QUEUE_H
#define GDRPY_SIM_QUEUE_H

#include "stream.h"

/* All operations of a stream up to one. Holds a reference to the stream. */
struct point {
	struct stream *stream;
	uint64_t sequence;
};

struct operation {
	/* Called with the lock held, which it may release. A failure ends the context. */
	CUresult (*run)(struct stream *stream, struct operation *operation);
	/* Frees a submitted operation; NULL if it is plain malloc memory. */
	void (*release)(struct operation *operation);
	struct operation *next;
	uint64_t sequence;
	struct point *after;
	size_t after_count;
};

struct point point_last(struct stream *stream);
bool point_reached(struct point point);
CUresult point_wait(struct point point);

/* The run of an operation that only waits for its turn. */
CUresult queue_do_nothing(struct stream *stream, struct operation *operation);

/* Runs an operation on the calling thread, in stream order, and waits for it. */
CUresult queue_run(struct stream *stream, struct operation *operation);

/*
 * Queues an operation for the stream's thread, in order, and after `point` if that is not NULL. The
 * operation is malloc memory, which the queue then owns, even on failure.
 */
typedef CUresult queue_function(struct stream *stream, struct operation *operation,
				const struct point *point);
queue_function queue_submit;

/* The same for a short operation, which runs on the calling thread if it is its turn already. */
queue_function queue_launch;

/* Waits for all submitted operations. */
CUresult queue_wait_stream(struct stream *stream);
CUresult queue_wait_context(struct context *context);

/* Whether queue_wait_stream would return at once. */
bool queue_is_idle(const struct stream *stream);

#endif
