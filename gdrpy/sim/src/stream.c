/* SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "queue.h"

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
	CUresult result;

	if (!stream || flags & ~(unsigned int)CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	result = context_current(&context);
	if (result != CUDA_SUCCESS)
		return result;
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
	struct stream *stream;
	CUresult result;

	API(cuStreamDestroy_v2, NEEDS_INIT);

	if (stream_is_special(handle))
		return CUDA_ERROR_INVALID_HANDLE;
	result = stream_use(handle, &stream);
	if (result == CUDA_SUCCESS)
		stream_close(stream);
	return result;
}

CUresult cuStreamSynchronize(CUstream handle)
{
	struct stream *stream;
	CUresult result;

	API(cuStreamSynchronize, NEEDS_INIT);

	result = stream_use(handle, &stream);
	return result == CUDA_SUCCESS ? queue_wait_stream(stream) : result;
}

CUresult cuStreamQuery(CUstream handle)
{
	struct stream *stream;
	CUresult result;

	API(cuStreamQuery, NEEDS_INIT);

	result = stream_use(handle, &stream);
	if (result == CUDA_SUCCESS && !queue_is_idle(stream))
		return CUDA_ERROR_NOT_READY;
	return result;
}

CUresult cuStreamGetFlags(CUstream handle, unsigned int *flags)
{
	struct stream *stream;
	CUresult result;

	API(cuStreamGetFlags, NEEDS_INIT);

	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	result = stream_use(handle, &stream);
	if (result == CUDA_SUCCESS)
		*flags = stream->flags;
	return result;
}

CUresult cuStreamGetPriority(CUstream handle, int *priority)
{
	struct stream *stream;
	CUresult result;

	API(cuStreamGetPriority, NEEDS_INIT);

	if (!priority)
		return CUDA_ERROR_INVALID_VALUE;
	result = stream_use(handle, &stream);
	if (result == CUDA_SUCCESS)
		*priority = stream->priority;
	return result;
}

CUresult cuStreamGetId(CUstream handle, unsigned long long *id)
{
	struct stream *stream;
	CUresult result;

	API(cuStreamGetId, NEEDS_INIT);

	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	result = stream_use(handle, &stream);
	if (result == CUDA_SUCCESS)
		*id = stream->id;
	return result;
}

CUresult cuStreamGetDevice(CUstream handle, CUdevice *device)
{
	struct stream *stream;
	CUresult result;

	API(cuStreamGetDevice, NEEDS_INIT);

	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	result = stream_use(handle, &stream);
	if (result == CUDA_SUCCESS)
		*device = stream->context->device->ordinal;
	return result;
}

static CUresult get_context(CUstream handle, CUcontext *context)
{
	struct stream *stream;
	CUresult result;

	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	result = stream_use(handle, &stream);
	if (result == CUDA_SUCCESS)
		*context = stream->context;
	return result;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
	API(cuStreamGetCtx, NEEDS_INIT);

	return get_context(stream, context);
}

CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext *context, void **green_context)
{
	API(cuStreamGetCtx_v2, NEEDS_INIT);

	if (green_context)
		*green_context = NULL;
	return get_context(stream, context);
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
	CUresult result = stream_use(handle, &stream);

	if (result != CUDA_SUCCESS)
		return result;
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

	if (!callback || flags)
		return CUDA_ERROR_INVALID_VALUE;
	return submit_host(stream,
			   (struct host_operation){.callback = callback, .user_data = user_data});
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *user_data)
{
	API(cuLaunchHostFunc, NEEDS_INIT);

	if (!function)
		return CUDA_ERROR_INVALID_VALUE;
	return submit_host(stream,
			   (struct host_operation){.function = function, .user_data = user_data});
}
