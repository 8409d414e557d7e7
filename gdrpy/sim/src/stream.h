/* SPDX-License-Identifier: MIT */
/* All streams: open ones, and those that work or events still hold. */
#ifndef GDRPY_SIM_STREAM_H
#define GDRPY_SIM_STREAM_H

#include <pthread.h>

#include "context.h"

#define STREAM_LEAST_PRIORITY 0
#define STREAM_GREATEST_PRIORITY (-5)

struct stream {
	struct stream *next; /* in the list of all streams */
	struct context *context;
	uint64_t id;
	unsigned int flags;
	int priority;
	uint64_t thread; /* the thread whose per-thread stream it is, or 0 */
	unsigned int references;
	bool open;	  /* until it is destroyed; queued work is still done */
	bool cancelled;	  /* its context ended: operations end at once, without effect */
	bool worker;	  /* a thread serves the queue */
	bool last_of_all; /* operations come after all earlier work of the context */
	struct {
		unsigned int status;
		unsigned int mode;
		pthread_t thread; /* that began it */
	} capture;
	uint64_t submitted;
	uint64_t completed;
	struct operation *first;
	struct operation **last;
};

extern struct stream *streams;

/* A new open stream of the context; NULL without memory. */
struct stream *stream_new(struct context *context, unsigned int flags, int priority);

/* Accepts no more work; the stream is freed when its work is done. */
void stream_close(struct stream *stream);

/* Cancels and closes all streams of a context. */
void stream_close_all(struct context *context);

/* The stream of a program's handle, including the special ones, if its context is usable. */
CUresult stream_use(CUstream handle, struct stream **stream);

void stream_get(struct stream *stream);
void stream_put(struct stream *stream);

#endif
