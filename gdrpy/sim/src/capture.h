/* SPDX-License-Identifier: MIT */
/*
 * Captures of streams into graphs. A call that a capture forbids fails and invalidates the capture.
 * Graphs are empty: a captured stream takes no work.
 */
#ifndef GDRPY_SIM_CAPTURE_H
#define GDRPY_SIM_CAPTURE_H

#include "stream.h"

/* Refuses a call about all streams of a context while one of them is captured. */
CUresult capture_allows_context(const struct context *context);

/* Refuses a call that CUDA names unsafe, if the thread's mode and that of a capture forbid it. */
CUresult capture_allows_unsafe(void);

/* Refuses to ask a stream whether its work is done, or to wait for that. */
CUresult capture_allows_query(struct stream *stream);

/* Refuses work in a stream that is captured, or that waits for one. */
CUresult capture_allows_work(const struct stream *stream);

#endif
