/* SPDX-License-Identifier: MIT */
/*
 * Contexts. A destroyed one is kept, so that its handle is never reused, and calls that still use
 * it, for example on another thread's stack, report that it is destroyed.
 */
#ifndef GDRPY_SIM_CONTEXT_H
#define GDRPY_SIM_CONTEXT_H

#include "sim.h"

struct context {
	struct device *device;
	uint64_t id;
	unsigned int flags;
	unsigned int retains; /* of a primary context */
	bool alive;
	bool stopping;	/* it cannot start again before its memory is freed */
	CUresult error; /* of a failed operation: every later call returns it */
	uint32_t peers; /* bit N: access to device N's memory was enabled */
	struct stream *null_stream;
	struct block *small_blocks; /* for small cuMemAllocs, by block->next */
};

/* The calling thread's context, if it is usable. */
CUresult context_current(struct context **context);

/* The context of a handle from the program, if it is usable. */
CUresult context_use(CUcontext handle, struct context **context);

/* In event.c. */
void event_free_all(struct context *context);

/* CUDA_SUCCESS if the context is usable, else the reason. */
CUresult context_state(const struct context *context);

#endif
