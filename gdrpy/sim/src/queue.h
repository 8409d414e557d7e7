/* SPDX-License-Identifier: MIT */
/*
 * Streams and the operations in them. A stream does its operations in the order of their numbers,
 * each once everything that it comes after is done: that is what one point in another stream says,
 * and events, the NULL stream and synchronization are all made of points.
 */
#ifndef GDRPY_SIM_QUEUE_H
#define GDRPY_SIM_QUEUE_H

#include "streams.h"

/* Everything up to an operation of a stream. It holds a reference to the stream. */
struct point {
	struct stream *stream;
	uint64_t sequence;
};

struct operation {
	/* Called with the lock, which it may open. What fails here ends the context. */
	CUresult (*run)(struct stream *stream, struct operation *operation);
	/* Gives back what a submitted operation has; NULL if it is plain malloc memory. */
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

/* Does an operation on the calling thread, in its place in the stream, and waits for it. */
CUresult queue_run(struct stream *stream, struct operation *operation);

/*
 * Has a stream's own thread do an operation, after its turn and after `point` if that is not NULL.
 * The operation is malloc memory and the queue's from now on, also when this fails.
 */
typedef CUresult queue_function(struct stream *stream, struct operation *operation,
				const struct point *point);
queue_function queue_submit;

/* The same, but for a short operation: if it is its turn already, it is done right here. */
queue_function queue_launch;

/* Waits for all that has been submitted. */
CUresult queue_wait_stream(struct stream *stream);
CUresult queue_wait_context(struct context *context);

/* Whether all that queue_wait_stream would wait for is done. */
bool queue_is_idle(const struct stream *stream);

#endif
