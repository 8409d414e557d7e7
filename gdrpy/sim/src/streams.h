/* SPDX-License-Identifier: MIT */
/* The streams that there are: those that are open, and those still held by work or by events. */
#ifndef GDRPY_SIM_STREAMS_H
#define GDRPY_SIM_STREAMS_H

#include "context.h"

#define STREAM_LEAST_PRIORITY 0
#define STREAM_GREATEST_PRIORITY (-5)

struct stream {
	struct stream *next; /* in the list of all */
	struct context *context;
	uint64_t id;
	unsigned int flags;
	int priority;
	uint64_t thread; /* whose per-thread stream it is, or 0 */
	unsigned int references;
	bool open;	  /* until it is destroyed; what it has been given is done all the same */
	bool cancelled;	  /* its context ended: operations end at once, doing nothing more */
	bool worker;	  /* a thread serves the queue */
	bool last_of_all; /* operations come after all that the context was given before */
	uint64_t submitted;
	uint64_t completed;
	struct operation *first;
	struct operation **last;
};

extern struct stream *streams;

/* An open stream of the context; NULL for want of memory. */
struct stream *stream_new(struct context *context, unsigned int flags, int priority);

/* No more is submitted to it; it goes away when it is done. */
void stream_close(struct stream *stream);

/* Cancels and closes all streams of a context. */
void stream_close_all(struct context *context);

/* What a handle of the program's means, the special ones too. Its context can be used. */
CUresult stream_use(CUstream handle, struct stream **stream);

/* Whether it is one of the handles that are no stream of the program's making. */
bool stream_is_special(CUstream handle);

void stream_get(struct stream *stream);
void stream_put(struct stream *stream);

#endif
