/* SPDX-License-Identifier: MIT */
/* Attributes of pointers. */
#include <string.h>

#include "address.h"
#include "allocation.h"
#include "context.h"
#include "range.h"

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

/* Each attribute, the bytes of its value, and the value. No memory is managed or from a pool. */
#define ATTRIBUTES(X)                                                                              \
	X(CONTEXT, 8, (uintptr_t)range->context)                                                   \
	X(MEMORY_TYPE, 4, range_is_host(range) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE)        \
	X(DEVICE_POINTER, 8, pointer)                                                              \
	X(HOST_POINTER, 8, pointer)                                                                \
	X(SYNC_MEMOPS, 4, range->sync_memops)                                                      \
	X(BUFFER_ID, 8, range->id)                                                                 \
	X(IS_MANAGED, 4, 0)                                                                        \
	X(DEVICE_ORDINAL, 4, (uint64_t)device_of(range)->ordinal)                                  \
	X(IS_LEGACY_CUDA_IPC_CAPABLE, 4, range->kind == RANGE_ALLOCATED)                           \
	X(RANGE_START_ADDR, 8, extent(range).start)                                                \
	X(RANGE_SIZE, 8, extent(range).size)                                                       \
	X(MAPPED, 4, 1)                                                                            \
	X(ALLOWED_HANDLE_TYPES, 8, vmm ? vmm->requestedHandleTypes : 0)                            \
	X(IS_GPU_DIRECT_RDMA_CAPABLE, 4,                                                           \
	  vmm ? vmm->allocFlags.gpuDirectRDMACapable : range->kind == RANGE_ALLOCATED)             \
	X(ACCESS_FLAGS, 4, access_flags(range))                                                    \
	X(MEMPOOL_HANDLE, 8, 0)                                                                    \
	X(MAPPING_SIZE, 8, mapping(range).size)                                                    \
	X(MAPPING_BASE_ADDR, 8, mapping(range).start)                                              \
	X(MEMORY_BLOCK_ID, 8, range->block ? range->block->backing.inode : range->id)

/* 0 if there is no such attribute. */
static size_t attribute_width(int attribute)
{
#define WIDTH(attribute, width, value) [CU_POINTER_ATTRIBUTE_##attribute] = width,
	static const size_t widths[] = {ATTRIBUTES(WIDTH)};

	return attribute >= 0 && (size_t)attribute < sizeof(widths) / sizeof(widths[0])
		       ? widths[attribute]
		       : 0;
}

static CUresult ask(const struct range *range, uint64_t pointer, int attribute, uint64_t *answer)
{
#define ANSWER(attribute, width, value) [CU_POINTER_ATTRIBUTE_##attribute] = value,
	const CUmemAllocationProp *vmm = range->allocation ? &range->allocation->properties : NULL;
	const uint64_t answers[] = {ATTRIBUTES(ANSWER)};

	REQUIRE((attribute != CU_POINTER_ATTRIBUTE_DEVICE_POINTER || access_flags(range)) &&
		(attribute != CU_POINTER_ATTRIBUTE_HOST_POINTER || range_is_host(range)));
	*answer = answers[attribute];
	return CUDA_SUCCESS;
}

/* As seen on driver 580: the same tokens for all memory. Later copies are synchronous. */
static CUresult ask_tokens(struct range *range, CUDA_POINTER_ATTRIBUTE_P2P_TOKENS *tokens)
{
	REQUIRE(!range_is_host(range));
	range->sync_memops = true;
	*tokens = (CUDA_POINTER_ATTRIBUTE_P2P_TOKENS){.vaSpaceToken = 65024};
	return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr pointer)
{
	API(cuPointerGetAttribute, NEEDS_INIT);
	size_t width = attribute_width(attribute);
	uint64_t answer;
	struct range *range = range_at(pointer);

	if (data && range && attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS)
		return ask_tokens(range, data);
	REQUIRE(data && width && range);
	TRY(ask(range, pointer, attribute, &answer));
	memcpy(data, &answer, width);
	return CUDA_SUCCESS;
}

/* Unlike above, an attribute that the pointer does not have is 0, not an error. */
CUresult cuPointerGetAttributes(unsigned int count, int *attributes, void **data,
				CUdeviceptr pointer)
{
	API(cuPointerGetAttributes, NEEDS_INIT);
	const int no_device = -2;
	const struct range *range;

	REQUIRE(count && attributes && data);
	for (unsigned int i = 0; i < count; i++)
		REQUIRE(data[i] && attribute_width(attributes[i]));
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
	API(cuPointerSetAttribute, NEEDS_INIT);
	unsigned int value;
	struct range *range = range_at(pointer);

	REQUIRE(data && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && range);
	memcpy(&value, data, sizeof(value));
	range->sync_memops = value != 0;
	return CUDA_SUCCESS;
}
