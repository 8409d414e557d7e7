/* SPDX-License-Identifier: MIT */
/* Copies of rows of bytes, of which a plain copy is one row. */
#ifndef GDRPY_SIM_COPY_H
#define GDRPY_SIM_COPY_H

#include "access.h"
#include "queue.h"

/* One end of a copy. */
struct side {
	uint64_t start;
	uint64_t pitch;		     /* from row to row; any for one row */
	bool pageable;		     /* may be memory that the driver does not know */
	const struct device *device; /* that accesses it; NULL: the stream's */
};

struct copy {
	struct side destination;
	struct side source;
	uint64_t width;
	uint64_t height;
};

/* On the calling thread, in the stream's order. */
CUresult copy_run(CUstream stream, const struct copy *copy);

/*
 * Through a queue. As on a real driver, pageable memory is read before this returns, and a copy to
 * pageable memory is waited for.
 */
CUresult copy_queue(CUstream stream, const struct copy *copy, queue_function *queue);

/* The span of all rows of one side; the size is 0 for no bytes, and all of memory on overflow. */
struct span copy_span(uint64_t start, uint64_t pitch, uint64_t width, uint64_t height);

#endif
