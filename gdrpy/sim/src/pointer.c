/* SPDX-License-Identifier: MIT */
/* Attributes of pointers. */
#include <string.h>

#include "allocation.h"
#include "context.h"
#include "range.h"
#include "reservation.h"

/* Bytes of an attribute's value; 0 if there is no such attribute. */
static size_t attribute_width(int attribute)
{
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		return 8;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
	case CU_POINTER_ATTRIBUTE_MAPPED:
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		return 4;
	default:
		return 0;
	}
}

static struct device *device_of(const struct range *range)
{
	return range->block ? range->block->device : range->context->device;
}

/* The rights of the current context's device, or without one, of the memory's device. */
static unsigned int access_flags(const struct range *range)
{
	struct context *context;
	struct device *device = device_of(range);

	if (range->kind != RANGE_MAPPED)
		return CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	if (context_current(&context) == CUDA_SUCCESS)
		device = context->device;
	return range->access[device->ordinal];
}

/* The extent of the allocation, or of the reservation in which it is mapped. */
static struct reservation extent(const struct range *range)
{
	if (range->kind == RANGE_MAPPED)
		return *reservation_at(range->start);
	return (struct reservation){range->start, range->size};
}

/* The extent of one mapping by the driver: a whole block of device memory. */
static struct reservation mapping(const struct range *range)
{
	if (!range->block)
		return extent(range);
	return (struct reservation){range->start - range->block_offset, range->block->backing.size};
}

static CUresult ask(const struct range *range, uint64_t pointer, int attribute, uint64_t *answer)
{
	bool host = range_is_host(range);

	*answer = 0;
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		*answer = (uintptr_t)range->context;
		break;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*answer = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		if (!access_flags(range))
			return CUDA_ERROR_INVALID_VALUE;
		*answer = pointer;
		break;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		if (!host)
			return CUDA_ERROR_INVALID_VALUE;
		*answer = pointer;
		break;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		*answer = range->sync_memops;
		break;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		*answer = range->id;
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*answer = (uint64_t)device_of(range)->ordinal;
		break;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		*answer = range->kind == RANGE_ALLOCATED;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*answer = extent(range).start;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*answer = extent(range).size;
		break;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		*answer = 1;
		break;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		if (range->allocation)
			*answer = range->allocation->properties.requestedHandleTypes;
		break;
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
		if (range->allocation)
			*answer = range->allocation->properties.allocFlags.gpuDirectRDMACapable;
		else
			*answer = range->kind == RANGE_ALLOCATED;
		break;
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		*answer = access_flags(range);
		break;
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		*answer = mapping(range).size;
		break;
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		*answer = mapping(range).start;
		break;
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		*answer = range->block ? range->block->backing.inode : range->id;
		break;
	default: /* no memory is managed or from a pool */
		break;
	}
	return CUDA_SUCCESS;
}

/* As seen on driver 580: the same tokens for all memory. Later copies are synchronous. */
static CUresult ask_tokens(struct range *range, CUDA_POINTER_ATTRIBUTE_P2P_TOKENS *tokens)
{
	if (range_is_host(range))
		return CUDA_ERROR_INVALID_VALUE;
	range->sync_memops = true;
	*tokens = (CUDA_POINTER_ATTRIBUTE_P2P_TOKENS){.vaSpaceToken = 65024};
	return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr pointer)
{
	size_t width = attribute_width(attribute);
	struct range *range;
	uint64_t answer;
	CUresult result;

	API(cuPointerGetAttribute, NEEDS_INIT);

	range = range_at(pointer);
	if (data && range && attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS)
		return ask_tokens(range, data);
	if (!data || !width || !range)
		return CUDA_ERROR_INVALID_VALUE;
	result = ask(range, pointer, attribute, &answer);
	if (result == CUDA_SUCCESS)
		memcpy(data, &answer, width);
	return result;
}

/* Unlike above, an attribute that the pointer does not have is 0, not an error. */
CUresult cuPointerGetAttributes(unsigned int count, int *attributes, void **data,
				CUdeviceptr pointer)
{
	const int no_device = -2;
	const struct range *range;

	API(cuPointerGetAttributes, NEEDS_INIT);

	if (!count || !attributes || !data)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned int i = 0; i < count; i++)
		if (!data[i] || !attribute_width(attributes[i]))
			return CUDA_ERROR_INVALID_VALUE;
	range = range_at(pointer);
	for (unsigned int i = 0; i < count; i++) {
		uint64_t answer = 0;

		if (range && ask(range, pointer, attributes[i], &answer) != CUDA_SUCCESS)
			answer = 0;
		else if (!range && attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
			memcpy(&answer, &no_device, sizeof(no_device));
		memcpy(data[i], &answer, attribute_width(attributes[i]));
	}
	return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void *data, int attribute, CUdeviceptr pointer)
{
	struct range *range;
	unsigned int value;

	API(cuPointerSetAttribute, NEEDS_INIT);

	range = range_at(pointer);
	if (!data || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !range)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&value, data, sizeof(value));
	range->sync_memops = value != 0;
	return CUDA_SUCCESS;
}
