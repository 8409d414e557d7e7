/* SPDX-License-Identifier: MIT */
/* Copies of rows of bytes. A plain copy has one row. */
#ifndef GDRPY_SIM_COPY_H
#define GDRPY_SIM_COPY_H

#include "access.h"
#include "queue.h"

/* One end of a copy. */
struct side {
	uint64_t start;
	uint64_t pitch;		     /* from row to row; any for one row */
	bool pageable;		     /* may be memory unknown to the driver */
	const struct device *device; /* the device that accesses it; NULL: the stream's */
};

struct copy {
	struct side destination;
	struct side source;
	uint64_t width;
	uint64_t height;
};

/* Copies on the calling thread, in stream order. */
CUresult copy_run(CUstream stream, struct copy copy);

/*
 * Copies through a queue. As on a real driver, pageable memory is read before this returns, and a
 * copy to pageable memory is complete on return.
 */
CUresult copy_queue(CUstream stream, struct copy copy, queue_function *queue);

/* The span of all rows of one side. The size is 0 for no bytes, and UINT64_MAX on overflow. */
struct span copy_span(uint64_t start, uint64_t pitch, uint64_t width, uint64_t height);

#endif
