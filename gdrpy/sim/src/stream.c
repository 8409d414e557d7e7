/* SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "capture.h"
#include "queue.h"

/* The handles up to this one are special: the NULL stream, the legacy one, the per-thread one. */
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

/* Whether a handle is not of a stream that the program created. */
static bool is_special(CUstream handle)
{
	return (uintptr_t)handle <= HANDLE_PER_THREAD;
}

CUresult stream_use(CUstream handle, struct stream **stream)
{
	struct context *context;

	if (is_special(handle)) {
		TRY(context_current(&context));
		if ((uintptr_t)handle == HANDLE_PER_THREAD)
			return use_per_thread(context, stream);
		*stream = context->null_stream;
		return CUDA_SUCCESS;
	}
	for (*stream = streams; *stream; *stream = (*stream)->next)
		if (*stream == handle && (*stream)->open)
			return context_state((*stream)->context);
	sim_no_such("stream", handle);
}

struct host_operation {
	struct operation operation;
	CUhostFn function;
	CUstreamCallback callback; /* in its place, for cuStreamAddCallback */
	CUstream handle;
	void *user_data;
};

static CUresult stream_create(CUstream *stream, unsigned int flags, int priority)
{
	struct context *context;

	REQUIRE(stream && !(flags & ~(unsigned int)CU_STREAM_NON_BLOCKING));
	TRY(context_current(&context));
	if (priority > STREAM_LEAST_PRIORITY)
		priority = STREAM_LEAST_PRIORITY;
	if (priority < STREAM_GREATEST_PRIORITY)
		priority = STREAM_GREATEST_PRIORITY;
	*stream = stream_new(context, flags, priority);
	return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
	API(cuStreamCreate, NEEDS_INIT);
	return stream_create(stream, flags, STREAM_LEAST_PRIORITY);
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
	API(cuStreamCreateWithPriority, NEEDS_INIT);
	return stream_create(stream, flags, priority);
}

CUresult cuStreamDestroy_v2(CUstream handle)
{
	API(cuStreamDestroy_v2, NEEDS_INIT);
	struct stream *stream;

	if (is_special(handle))
		return CUDA_ERROR_INVALID_HANDLE;
	TRY(stream_use(handle, &stream));
	stream_close(stream);
	return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream handle)
{
	API(cuStreamSynchronize, NEEDS_INIT);
	struct stream *stream;

	TRY(stream_use(handle, &stream));
	TRY(capture_allows_query(stream));
	return queue_wait_stream(stream);
}

CUresult cuStreamQuery(CUstream handle)
{
	API(cuStreamQuery, NEEDS_INIT);
	struct stream *stream;

	TRY(stream_use(handle, &stream));
	TRY(capture_allows_query(stream));
	return queue_is_idle(stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

/* A function that answers with a value of a stream. */
#define STREAM_QUERY(symbol, type, value)                                                          \
	CUresult symbol(CUstream handle, type *answer)                                             \
	{                                                                                          \
		API(symbol, NEEDS_INIT);                                                           \
		struct stream *stream;                                                             \
                                                                                                   \
		if (!answer)                                                                       \
			return CUDA_ERROR_INVALID_VALUE;                                           \
		TRY(stream_use(handle, &stream));                                                  \
		*answer = value;                                                                   \
		return CUDA_SUCCESS;                                                               \
	}

STREAM_QUERY(cuStreamGetFlags, unsigned int, stream->flags)
STREAM_QUERY(cuStreamGetPriority, int, stream->priority)
STREAM_QUERY(cuStreamGetId, unsigned long long, stream->id)
STREAM_QUERY(cuStreamGetDevice, CUdevice, stream->context->device->ordinal)
STREAM_QUERY(cuStreamGetCtx, CUcontext, stream->context)

CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext *context, void **green_context)
{
	API(cuStreamGetCtx_v2, NEEDS_INIT);
	struct stream *stream;

	if (green_context)
		*green_context = NULL;
	REQUIRE(context);
	TRY(stream_use(handle, &stream));
	*context = stream->context;
	return CUDA_SUCCESS;
}

static CUresult run_host(struct stream *stream, struct operation *operation)
{
	struct host_operation *host = (struct host_operation *)operation;

	(void)stream;
	pthread_mutex_unlock(&sim.lock);
	sim_in_callback = true;
	if (host->function)
		host->function(host->user_data);
	else
		host->callback(host->handle, CUDA_SUCCESS, host->user_data);
	sim_in_callback = false;
	pthread_mutex_lock(&sim.lock);
	return CUDA_SUCCESS;
}

static CUresult submit_host(CUstream handle, struct host_operation wanted)
{
	struct host_operation *operation;
	struct stream *stream;

	TRY(stream_use(handle, &stream));
	operation = malloc(sizeof(*operation));
	if (!operation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*operation = wanted;
	operation->operation = (struct operation){.run = run_host};
	operation->handle = handle;
	return queue_submit(stream, &operation->operation, NULL);
}

CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *user_data,
			     unsigned int flags)
{
	API(cuStreamAddCallback, NEEDS_INIT);

	REQUIRE(callback && !flags);
	return submit_host(stream,
			   (struct host_operation){.callback = callback, .user_data = user_data});
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *user_data)
{
	API(cuLaunchHostFunc, NEEDS_INIT);

	REQUIRE(function);
	return submit_host(stream,
			   (struct host_operation){.function = function, .user_data = user_data});
}
