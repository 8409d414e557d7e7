/* SPDX-License-Identifier: MIT */
#include "streams.h"

#include <stdlib.h>

#define HANDLE_NULL ((uintptr_t)0)
#define HANDLE_LEGACY ((uintptr_t)1)
#define HANDLE_PER_THREAD ((uintptr_t)2)

struct stream *streams;

static pthread_key_t thread_key;
static bool have_thread_key;
static __thread uint64_t thread_id;

void stream_get(struct stream *stream)
{
	stream->references++;
}

void stream_put(struct stream *stream)
{
	struct stream **link = &streams;

	if (--stream->references)
		return;
	while (*link != stream)
		link = &(*link)->next;
	*link = stream->next;
	free(stream);
}

struct stream *stream_new(struct context *context, unsigned int flags, int priority)
{
	struct stream *stream = calloc(1, sizeof(*stream));

	if (!stream)
		return NULL;
	stream->context = context;
	stream->id = sim_next_id();
	stream->flags = flags;
	stream->priority = priority;
	stream->references = 1;
	stream->open = true;
	stream->last = &stream->first;
	stream->next = streams;
	streams = stream;
	return stream;
}

void stream_close(struct stream *stream)
{
	stream->open = false;
	pthread_cond_broadcast(&sim.changed);
	stream_put(stream);
}

void stream_close_all(struct context *context)
{
	struct stream *next;

	for (struct stream *stream = streams; stream; stream = next) {
		next = stream->next;
		if (stream->context != context || stream->cancelled)
			continue;
		stream->cancelled = true;
		if (stream->open)
			stream_close(stream);
	}
	pthread_cond_broadcast(&sim.changed);
}

/* At the end of a thread. */
static void close_per_thread(void *id)
{
	struct stream *next;

	pthread_mutex_lock(&sim.lock);
	for (struct stream *stream = streams; stream; stream = next) {
		next = stream->next;
		if (stream->open && stream->thread == (uintptr_t)id)
			stream_close(stream);
	}
	pthread_mutex_unlock(&sim.lock);
}

static CUresult identify_thread(void)
{
	if (thread_id)
		return CUDA_SUCCESS;
	if (!have_thread_key && pthread_key_create(&thread_key, close_per_thread))
		return CUDA_ERROR_OUT_OF_MEMORY;
	have_thread_key = true;
	thread_id = sim_next_id();
	pthread_setspecific(thread_key, (void *)(uintptr_t)thread_id);
	return CUDA_SUCCESS;
}

static CUresult use_per_thread(struct context *context, struct stream **stream)
{
	TRY(identify_thread());
	for (*stream = streams; *stream; *stream = (*stream)->next)
		if ((*stream)->open && (*stream)->context == context &&
		    (*stream)->thread == thread_id)
			return CUDA_SUCCESS;
	*stream = stream_new(context, 0, 0);
	if (!*stream)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*stream)->thread = thread_id;
	return CUDA_SUCCESS;
}

bool stream_is_special(CUstream handle)
{
	return (uintptr_t)handle <= HANDLE_PER_THREAD;
}

CUresult stream_use(CUstream handle, struct stream **stream)
{
	struct context *context;

	if (stream_is_special(handle)) {
		TRY(context_current(&context));
		if ((uintptr_t)handle == HANDLE_PER_THREAD)
			return use_per_thread(context, stream);
		*stream = context->null_stream;
		return CUDA_SUCCESS;
	}
	for (*stream = streams; *stream; *stream = (*stream)->next)
		if (*stream == handle && (*stream)->open)
			return context_state((*stream)->context);
	return CUDA_ERROR_INVALID_HANDLE;
}
