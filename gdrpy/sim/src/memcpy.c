/* SPDX-License-Identifier: MIT */
/* The copy functions. A host pointer may be any memory, a device pointer only device memory. */
#include <stddef.h>

#include "copy.h"

static struct side host_side(const void *pointer)
{
	return (struct side){.start = (uintptr_t)pointer, .pageable = true};
}

static struct side device_side(CUdeviceptr pointer)
{
	return (struct side){.start = pointer};
}

/* For functions that take both kinds of pointers, by unified addressing. */
static struct side any_side(CUdeviceptr pointer)
{
	return (struct side){.start = pointer, .pageable = true};
}

static struct copy row(struct side destination, struct side source, size_t size)
{
	return (struct copy){destination, source, size, 1};
}

/* The functions for one pair of pointers: without a stream, which waits, and in one. */
#define COPY_FUNCTIONS(wait, in_stream, dst_type, src_type, dst_side, src_side)                    \
	CUresult wait(dst_type dst, src_type src, size_t size)                                     \
	{                                                                                          \
		API(wait, NEEDS_CONTEXT);                                                          \
		return copy_run(NULL, row(dst_side(dst), src_side(src), size));                    \
	}                                                                                          \
	CUresult in_stream(dst_type dst, src_type src, size_t size, CUstream stream)               \
	{                                                                                          \
		API(in_stream, NEEDS_INIT);                                                        \
		return copy_queue(stream, row(dst_side(dst), src_side(src), size), queue_submit);  \
	}

COPY_FUNCTIONS(cuMemcpy, cuMemcpyAsync, CUdeviceptr, CUdeviceptr, any_side, any_side)
COPY_FUNCTIONS(cuMemcpyHtoD_v2, cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *, device_side,
	       host_side)
COPY_FUNCTIONS(cuMemcpyDtoH_v2, cuMemcpyDtoHAsync_v2, void *, CUdeviceptr, host_side, device_side)

CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t size)
{
	API(cuMemcpyDtoD_v2, NEEDS_CONTEXT);
	/* The host does not wait for a copy within a device. */
	return copy_queue(NULL, row(device_side(dst), device_side(src), size), queue_launch);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream)
{
	API(cuMemcpyDtoDAsync_v2, NEEDS_INIT);
	return copy_queue(stream, row(device_side(dst), device_side(src), size), queue_submit);
}

/* Each end is accessed by the device of its own context. */
static CUresult peer_copy(struct copy *copy, CUcontext dst_context, CUcontext src_context)
{
	struct context *dst, *src;

	TRY(context_use(dst_context, &dst));
	TRY(context_use(src_context, &src));
	copy->destination.device = dst->device;
	copy->source.device = src->device;
	return CUDA_SUCCESS;
}

CUresult cuMemcpyPeer(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src,
		      CUcontext src_context, size_t size)
{
	API(cuMemcpyPeer, NEEDS_CONTEXT);
	struct copy copy = row(device_side(dst), device_side(src), size);

	TRY(peer_copy(&copy, dst_context, src_context));
	return copy_run(NULL, copy);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src,
			   CUcontext src_context, size_t size, CUstream stream)
{
	API(cuMemcpyPeerAsync, NEEDS_INIT);
	struct copy copy = row(device_side(dst), device_side(src), size);

	TRY(peer_copy(&copy, dst_context, src_context));
	return copy_queue(stream, copy, queue_submit);
}

#define MAX_PITCH 2147483647

/* One end of a 2D copy, at its x and y. A pitch of 0 means that the rows are packed. */
static bool side_2d(unsigned int type, const void *host, CUdeviceptr device, size_t pitch, size_t x,
		    size_t y, const CUDA_MEMCPY2D *parameters, struct side *side)
{
	uint64_t row_end, offset;

	if (type == CU_MEMORYTYPE_HOST)
		*side = host_side(host);
	else if (type == CU_MEMORYTYPE_DEVICE)
		*side = device_side(device);
	else if (type == CU_MEMORYTYPE_UNIFIED)
		*side = any_side(device);
	else
		return false;
	if (__builtin_add_overflow(x, parameters->WidthInBytes, &row_end))
		return false;
	side->pitch = pitch ? pitch : row_end;
	if (side->pitch > MAX_PITCH || side->pitch < row_end)
		return false;
	return !__builtin_mul_overflow(side->pitch, y, &offset) &&
	       !__builtin_add_overflow(offset, x, &offset) &&
	       !__builtin_add_overflow(side->start, offset, &side->start);
}

static CUresult parse_2d(const CUDA_MEMCPY2D *from, struct copy *copy)
{
	REQUIRE(from);
	copy->width = from->WidthInBytes;
	copy->height = from->Height;
	if (side_2d(from->srcMemoryType, from->srcHost, from->srcDevice, from->srcPitch,
		    from->srcXInBytes, from->srcY, from, &copy->source) &&
	    side_2d(from->dstMemoryType, from->dstHost, from->dstDevice, from->dstPitch,
		    from->dstXInBytes, from->dstY, from, &copy->destination))
		return CUDA_SUCCESS;
	return CUDA_ERROR_INVALID_VALUE;
}

#define COPY_2D_FUNCTION(symbol)                                                                   \
	CUresult symbol(const CUDA_MEMCPY2D *parameters)                                           \
	{                                                                                          \
		API(symbol, NEEDS_CONTEXT);                                                        \
		struct copy copy;                                                                  \
                                                                                                   \
		TRY(parse_2d(parameters, &copy));                                                  \
		return copy_run(NULL, copy);                                                       \
	}

COPY_2D_FUNCTION(cuMemcpy2D_v2)
COPY_2D_FUNCTION(cuMemcpy2DUnaligned_v2)

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *parameters, CUstream stream)
{
	API(cuMemcpy2DAsync_v2, NEEDS_INIT);
	struct copy copy;

	TRY(parse_2d(parameters, &copy));
	return copy_queue(stream, copy, queue_submit);
}
