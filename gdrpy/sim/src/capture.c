/* SPDX-License-Identifier: MIT */
#include "capture.h"

#include <stdlib.h>

struct graph {
	struct graph *next;
};

static struct graph *graphs;

static __thread unsigned int thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static bool is_captured(const struct stream *stream)
{
	return stream->open && stream->capture.status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static bool is_legacy(const struct stream *stream)
{
	return stream == stream->context->null_stream;
}

/* Whether work of a stream would wait for another one that is captured. */
static bool waits_for(const struct stream *stream, const struct stream *other)
{
	return is_legacy(stream) && other->context == stream->context &&
	       !(other->flags & CU_STREAM_NON_BLOCKING) &&
	       other->capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
}

/* Whether a capture forbids the calling thread what CUDA names unsafe. */
static bool forbids(const struct stream *stream)
{
	unsigned int mode = stream->capture.mode;

	if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return false;
	if (pthread_equal(stream->capture.thread, pthread_self()))
		return mode != CU_STREAM_CAPTURE_MODE_RELAXED;
	return mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
	       thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult capture_allows_context(const struct context *context)
{
	CUresult result = CUDA_SUCCESS;

	for (struct stream *stream = streams; stream; stream = stream->next) {
		if (!is_captured(stream) || stream->context != context)
			continue;
		stream->capture.status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
		result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	return result;
}

CUresult capture_allows_unsafe(void)
{
	CUresult result = CUDA_SUCCESS;

	for (struct stream *stream = streams; stream; stream = stream->next) {
		if (!is_captured(stream) || !forbids(stream))
			continue;
		stream->capture.status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
		result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	return result;
}

static CUresult allows_waiting(const struct stream *stream)
{
	CUresult result = CUDA_SUCCESS;

	for (struct stream *other = streams; other; other = other->next) {
		if (!is_captured(other) || !waits_for(stream, other))
			continue;
		other->capture.status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
		result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	return result;
}

CUresult capture_allows_query(struct stream *stream)
{
	if (is_captured(stream)) {
		stream->capture.status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	TRY(allows_waiting(stream));
	return capture_allows_unsafe();
}

CUresult capture_allows_work(const struct stream *stream)
{
	if (!is_captured(stream))
		return allows_waiting(stream);
	return stream->capture.status == CU_STREAM_CAPTURE_STATUS_INVALIDATED
		       ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
		       : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuStreamBeginCapture_v2(CUstream handle, unsigned int mode)
{
	API(cuStreamBeginCapture_v2, NEEDS_INIT);
	struct stream *stream;

	REQUIRE(mode <= CU_STREAM_CAPTURE_MODE_RELAXED);
	TRY(stream_use(handle, &stream));
	if (is_legacy(stream))
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (is_captured(stream))
		return CUDA_ERROR_ILLEGAL_STATE;
	stream->capture.status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
	stream->capture.mode = mode;
	stream->capture.thread = pthread_self();
	return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph)
{
	API(cuStreamEndCapture, NEEDS_INIT);
	unsigned int status;
	struct stream *stream;

	REQUIRE(graph);
	*graph = NULL;
	TRY(stream_use(handle, &stream));
	if (!is_captured(stream))
		return CUDA_ERROR_ILLEGAL_STATE;
	status = stream->capture.status;
	stream->capture.status = CU_STREAM_CAPTURE_STATUS_NONE; /* for a wrong thread too */
	if (stream->capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
	    !pthread_equal(stream->capture.thread, pthread_self()))
		return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	*graph = calloc(1, sizeof(**graph));
	if (!*graph)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*graph)->next = graphs;
	graphs = *graph;
	return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream handle, unsigned int *status)
{
	API(cuStreamIsCapturing, NEEDS_INIT);
	struct stream *stream;

	REQUIRE(status);
	TRY(stream_use(handle, &stream));
	for (struct stream *other = streams; other; other = other->next)
		if (is_captured(other) && waits_for(stream, other))
			return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	*status = stream->capture.status;
	return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(unsigned int *mode)
{
	API(cuThreadExchangeStreamCaptureMode, NEEDS_INIT);
	unsigned int before = thread_mode;

	REQUIRE(mode && *mode <= CU_STREAM_CAPTURE_MODE_RELAXED);
	thread_mode = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph)
{
	API(cuGraphDestroy, NEEDS_INIT);
	struct graph **link = &graphs;

	while (*link && *link != graph)
		link = &(*link)->next;
	REQUIRE(*link);
	*link = graph->next;
	free(graph);
	return CUDA_SUCCESS;
}
