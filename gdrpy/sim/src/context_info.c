/* SPDX-License-Identifier: MIT */
/* Queries and settings of a context, and synchronization with it. */
#include "capture.h"
#include "queue.h"

/* The context of a handle, or the current one for NULL. */
static CUresult context_of(CUcontext handle, struct context **context)
{
	return handle ? context_use(handle, context) : context_current(context);
}

static CUresult get_device(CUcontext handle, CUdevice *device)
{
	struct context *context = NULL;
	CUresult result = context_of(handle, &context);

	REQUIRE(device);
	/* A destroyed context still knows its device. */
	if (!context)
		return result;
	*device = context->device->ordinal;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
	API(cuCtxGetDevice, NEEDS_INIT);
	return get_device(NULL, device);
}

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context)
{
	API(cuCtxGetDevice_v2, NEEDS_INIT);
	return get_device(context, device);
}

CUresult cuCtxGetFlags(unsigned int *flags)
{
	API(cuCtxGetFlags, NEEDS_CONTEXT);

	REQUIRE(flags);
	*flags = api_context->flags;
	if (api_context == api_context->device->primary)
		*flags |= CU_CTX_MAP_HOST;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long *id)
{
	API(cuCtxGetId, NEEDS_INIT);
	struct context *context;

	REQUIRE(id);
	TRY(context_of(handle, &context));
	*id = context->id;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int *version)
{
	API(cuCtxGetApiVersion, NEEDS_INIT);
	struct context *context;
	CUresult result;

	REQUIRE(version);
	result = context_of(handle, &context);
	if (result == CUDA_SUCCESS)
		*version = 3020; /* of the context interface: the same in all later drivers */
	return result;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	API(cuCtxGetStreamPriorityRange, NEEDS_CONTEXT);

	if (least)
		*least = STREAM_LEAST_PRIORITY;
	if (greatest)
		*greatest = STREAM_GREATEST_PRIORITY;
	return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
	API(cuCtxSynchronize, NEEDS_CONTEXT);

	TRY(capture_allows_context(api_context));
	return queue_wait_context(api_context);
}

CUresult cuCtxSynchronize_v2(CUcontext handle)
{
	API(cuCtxSynchronize_v2, NEEDS_INIT);
	struct context *context;

	TRY(context_of(handle, &context));
	TRY(capture_allows_context(context));
	return queue_wait_context(context);
}

static uint32_t peer_bit(const struct context *peer)
{
	return (uint32_t)1 << peer->device->ordinal;
}

CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned int flags)
{
	API(cuCtxEnablePeerAccess, NEEDS_CONTEXT);
	struct context *peer;

	REQUIRE(!flags);
	TRY(context_use(handle, &peer));
	if (peer->device == api_context->device)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!sim.peers)
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	if (api_context->peers & peer_bit(peer))
		return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
	api_context->peers |= peer_bit(peer);
	return CUDA_SUCCESS;
}

CUresult cuCtxDisablePeerAccess(CUcontext handle)
{
	API(cuCtxDisablePeerAccess, NEEDS_CONTEXT);
	struct context *peer;

	TRY(context_use(handle, &peer));
	if (!(api_context->peers & peer_bit(peer)))
		return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
	api_context->peers &= ~peer_bit(peer);
	return CUDA_SUCCESS;
}
