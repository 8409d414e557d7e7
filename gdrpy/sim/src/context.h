/* SPDX-License-Identifier: MIT */
/*
 * Contexts. One that is destroyed is kept, so that its handle is never given again and whoever
 * still has it, on another thread's stack say, is told that it is destroyed.
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
	bool stopping;	/* its memory is being taken away; it may not start again until that is done
			 */
	CUresult error; /* an operation failed: every further call says so until the end */
	uint32_t peers; /* bit N: access to device N's memory was enabled */
	struct stream *null_stream;
	struct block *small_blocks; /* for small cuMemAllocs, by block->next */
};

/* The calling thread's context, when it can be used. */
CUresult context_current(struct context **context);

/* The context of a handle that the program gives, when it can be used. */
CUresult context_use(CUcontext handle, struct context **context);

/* Whether the context can be used, and if not, why. */
CUresult context_state(const struct context *context);

#endif
