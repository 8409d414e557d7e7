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

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t size)
{
	struct copy copy = row(any_side(dst), any_side(src), size);

	API(cuMemcpy, NEEDS_CONTEXT);

	return copy_run(NULL, &copy);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream)
{
	struct copy copy = row(any_side(dst), any_side(src), size);

	API(cuMemcpyAsync, NEEDS_INIT);

	return copy_queue(stream, &copy, queue_submit);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t size)
{
	struct copy copy = row(device_side(dst), host_side(src), size);

	API(cuMemcpyHtoD_v2, NEEDS_CONTEXT);

	return copy_run(NULL, &copy);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t size, CUstream stream)
{
	struct copy copy = row(device_side(dst), host_side(src), size);

	API(cuMemcpyHtoDAsync_v2, NEEDS_INIT);

	return copy_queue(stream, &copy, queue_submit);
}

CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t size)
{
	struct copy copy = row(host_side(dst), device_side(src), size);

	API(cuMemcpyDtoH_v2, NEEDS_CONTEXT);

	return copy_run(NULL, &copy);
}

CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t size, CUstream stream)
{
	struct copy copy = row(host_side(dst), device_side(src), size);

	API(cuMemcpyDtoHAsync_v2, NEEDS_INIT);

	return copy_queue(stream, &copy, queue_submit);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t size)
{
	struct copy copy = row(device_side(dst), device_side(src), size);

	API(cuMemcpyDtoD_v2, NEEDS_CONTEXT);

	/* The host does not wait for a copy within a device. */
	return copy_queue(NULL, &copy, queue_launch);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream)
{
	struct copy copy = row(device_side(dst), device_side(src), size);

	API(cuMemcpyDtoDAsync_v2, NEEDS_INIT);

	return copy_queue(stream, &copy, queue_submit);
}

/* Each end is accessed by the device of its own context. */
static CUresult peer_copy(struct copy *copy, CUcontext dst_context, CUcontext src_context)
{
	struct context *dst, *src;
	CUresult result = context_use(dst_context, &dst);

	if (result == CUDA_SUCCESS)
		result = context_use(src_context, &src);
	if (result != CUDA_SUCCESS)
		return result;
	copy->destination.device = dst->device;
	copy->source.device = src->device;
	return CUDA_SUCCESS;
}

CUresult cuMemcpyPeer(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src,
		      CUcontext src_context, size_t size)
{
	struct copy copy = row(device_side(dst), device_side(src), size);
	CUresult result;

	API(cuMemcpyPeer, NEEDS_CONTEXT);

	result = peer_copy(&copy, dst_context, src_context);
	return result == CUDA_SUCCESS ? copy_run(NULL, &copy) : result;
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src,
			   CUcontext src_context, size_t size, CUstream stream)
{
	struct copy copy = row(device_side(dst), device_side(src), size);
	CUresult result;

	API(cuMemcpyPeerAsync, NEEDS_INIT);

	result = peer_copy(&copy, dst_context, src_context);
	return result == CUDA_SUCCESS ? copy_queue(stream, &copy, queue_submit) : result;
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

static bool parse_2d(const CUDA_MEMCPY2D *from, struct copy *copy)
{
	if (!from)
		return false;
	copy->width = from->WidthInBytes;
	copy->height = from->Height;
	return side_2d(from->srcMemoryType, from->srcHost, from->srcDevice, from->srcPitch,
		       from->srcXInBytes, from->srcY, from, &copy->source) &&
	       side_2d(from->dstMemoryType, from->dstHost, from->dstDevice, from->dstPitch,
		       from->dstXInBytes, from->dstY, from, &copy->destination);
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *parameters)
{
	struct copy copy;

	API(cuMemcpy2D_v2, NEEDS_CONTEXT);

	return parse_2d(parameters, &copy) ? copy_run(NULL, &copy) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *parameters)
{
	struct copy copy;

	API(cuMemcpy2DUnaligned_v2, NEEDS_CONTEXT);

	return parse_2d(parameters, &copy) ? copy_run(NULL, &copy) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *parameters, CUstream stream)
{
	struct copy copy;

	API(cuMemcpy2DAsync_v2, NEEDS_INIT);

	return parse_2d(parameters, &copy) ? copy_queue(stream, &copy, queue_submit)
					   : CUDA_ERROR_INVALID_VALUE;
}
