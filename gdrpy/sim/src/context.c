/* SPDX-License-Identifier: MIT */
#include "context.h"

#include <stdlib.h>

#include "queue.h"
#include "range.h"
#include "table.h"

#define MAX_STACK 64
#define PRIMARY_FLAGS_MASK (CU_CTX_FLAGS_MASK & ~CU_CTX_MAP_HOST)

static struct table contexts;

static __thread struct {
	struct context *contexts[MAX_STACK];
	unsigned int depth;
} stack;

CUresult context_state(const struct context *context)
{
	return context->alive ? context->error : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult context_current(struct context **context)
{
	if (!stack.depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	*context = stack.contexts[stack.depth - 1];
	return context_state(*context);
}

static bool known(CUcontext handle)
{
	return table_find(&contexts, (uintptr_t)handle) != NULL;
}

CUresult context_use(CUcontext handle, struct context **context)
{
	if (!known(handle))
		return CUDA_ERROR_INVALID_CONTEXT;
	*context = handle;
	return context_state(handle);
}

static struct context *context_new(struct device *device, unsigned int flags)
{
	struct context *context = calloc(1, sizeof(*context));

	if (!context || !table_insert(&contexts, (uintptr_t)context, context)) {
		free(context);
		return NULL;
	}
	context->device = device;
	context->id = sim_next_id();
	context->flags = flags;
	return context;
}

static CUresult context_start(struct context *context)
{
	while (context->stopping)
		pthread_cond_wait(&sim.changed, &sim.lock);
	if (context->alive)
		return CUDA_SUCCESS;
	context->null_stream = stream_new(context, 0, 0);
	if (!context->null_stream)
		return CUDA_ERROR_OUT_OF_MEMORY;
	context->alive = true;
	context->error = CUDA_SUCCESS;
	return CUDA_SUCCESS;
}

/* Frees everything in the context. Queued work ends at once without being done. */
static void context_stop(struct context *context)
{
	context->alive = false;
	context->stopping = true;
	pthread_cond_broadcast(&sim.changed);
	stream_close_all(context);
	event_free_all(context);
	range_free_all(context);
	context->null_stream = NULL;
	context->peers = 0;
	context->stopping = false;
	pthread_cond_broadcast(&sim.changed);
}

static CUresult make_primary(struct device *device)
{
	if (!device->primary)
		device->primary = context_new(device, 0);
	return device->primary ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal)
{
	API(cuDevicePrimaryCtxRetain, NEEDS_INIT);
	struct device *device;

	REQUIRE(context);
	TRY(device_use(ordinal, &device));
	TRY(make_primary(device));
	TRY(context_start(device->primary));
	device->primary->retains++;
	*context = device->primary;
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal)
{
	API(cuDevicePrimaryCtxRelease_v2, NEEDS_INIT);
	struct device *device;

	TRY(device_use(ordinal, &device));
	if (!device->primary || !device->primary->retains)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (--device->primary->retains == 0 && device->primary->alive)
		context_stop(device->primary);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal)
{
	API(cuDevicePrimaryCtxReset_v2, NEEDS_INIT);
	struct device *device;

	TRY(device_use(ordinal, &device));
	if (device->primary && device->primary->alive)
		context_stop(device->primary);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned int flags)
{
	API(cuDevicePrimaryCtxSetFlags_v2, NEEDS_INIT);
	struct device *device;

	TRY(device_use(ordinal, &device));
	REQUIRE(!(flags & ~(unsigned int)CU_CTX_FLAGS_MASK));
	TRY(make_primary(device));
	device->primary->flags = flags;
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int *flags, int *active)
{
	API(cuDevicePrimaryCtxGetState, NEEDS_INIT);
	struct device *device;

	REQUIRE(flags && active);
	TRY(device_use(ordinal, &device));
	*flags = device->primary ? device->primary->flags & PRIMARY_FLAGS_MASK : 0;
	*active = device->primary && device->primary->alive;
	return CUDA_SUCCESS;
}

static CUresult context_create(CUcontext *context, unsigned int flags, CUdevice ordinal)
{
	struct device *device;
	struct context *created;

	REQUIRE(context && !(flags & ~(unsigned int)CU_CTX_FLAGS_MASK));
	TRY(device_use(ordinal, &device));
	if (stack.depth == MAX_STACK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	created = context_new(device, flags);
	if (!created)
		return CUDA_ERROR_OUT_OF_MEMORY;
	TRY(context_start(created));
	stack.contexts[stack.depth++] = created;
	*context = created;
	return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
	API(cuCtxCreate_v2, NEEDS_INIT);
	return context_create(context, flags, device);
}

CUresult cuCtxCreate_v3(CUcontext *context, const void *affinity, int naffinity, unsigned int flags,
			CUdevice device)
{
	API(cuCtxCreate_v3, NEEDS_INIT);

	if (affinity || naffinity)
		return CUDA_ERROR_NOT_SUPPORTED;
	return context_create(context, flags, device);
}

CUresult cuCtxCreate_v4(CUcontext *context, const void *parameters, unsigned int flags,
			CUdevice device)
{
	API(cuCtxCreate_v4, NEEDS_INIT);

	if (parameters)
		return CUDA_ERROR_NOT_SUPPORTED;
	return context_create(context, flags, device);
}

static bool is_primary(const struct context *context)
{
	return context == context->device->primary;
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
	API(cuCtxDestroy_v2, NEEDS_INIT);

	REQUIRE(context);
	if (!known(context) || is_primary(context))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!context->alive)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	context_stop(context);
	if (stack.depth && stack.contexts[stack.depth - 1] == context)
		stack.depth--;
	return CUDA_SUCCESS;
}

/* A primary context may be made current before it is retained, and works after that. */
static CUresult check_usable(CUcontext context)
{
	if (!known(context))
		return CUDA_ERROR_INVALID_CONTEXT;
	return context->alive || is_primary(context) ? CUDA_SUCCESS
						     : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	API(cuCtxPushCurrent_v2, NEEDS_INIT);

	REQUIRE(context);
	TRY(check_usable(context));
	if (stack.depth == MAX_STACK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	stack.contexts[stack.depth++] = context;
	return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
	API(cuCtxPopCurrent_v2, NEEDS_INIT);

	if (!stack.depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	stack.depth--;
	if (context)
		*context = stack.contexts[stack.depth];
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
	API(cuCtxSetCurrent, NEEDS_INIT);

	if (!context) {
		if (stack.depth)
			stack.depth--;
		return CUDA_SUCCESS;
	}
	TRY(check_usable(context));
	if (!stack.depth)
		stack.depth = 1;
	stack.contexts[stack.depth - 1] = context;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
	API(cuCtxGetCurrent, NEEDS_INIT);

	REQUIRE(context);
	*context = stack.depth ? stack.contexts[stack.depth - 1] : NULL;
	return CUDA_SUCCESS;
}
