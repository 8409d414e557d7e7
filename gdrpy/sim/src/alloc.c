/* SPDX-License-Identifier: MIT */
/*
 * cuMemAlloc. As on a real driver, allocations of up to 1 MiB share blocks of 2 MiB, at multiples
 * of 512 bytes; each larger one has a separate block.
 */
#include "capture.h"
#include "range.h"

#define SMALL ((uint64_t)1 << 20)
#define ALIGNMENT ((uint64_t)512)
#define PITCH_ALIGNMENT ((uint64_t)512)

static uint64_t round_up(uint64_t size, uint64_t unit)
{
	return (size + unit - 1) / unit * unit;
}

static CUresult block_new_mapped(struct device *device, uint64_t size, struct block **block)
{
	CUresult result;

	TRY(block_create(device, size, block));
	result = block_map(*block, &(*block)->address);
	if (result != CUDA_SUCCESS)
		block_put(*block);
	return result;
}

/* Drops a reference to a block, and unmaps it before the last one. */
static void block_drop(struct context *context, struct block *block)
{
	struct block **link = &context->small_blocks;

	if (block->references == 1) {
		while (*link && *link != block)
			link = &(*link)->next;
		if (*link)
			*link = block->next;
		block_unmap(block, block->address);
	}
	block_put(block);
}

static void alloc_destroy(struct range *range)
{
	block_drop(range->context, range->block);
}

/* The first gap that is large enough, or 0. */
static uint64_t find_gap(const struct block *block, uint64_t size)
{
	uint64_t end = block->address + block->backing.size;
	uint64_t gap = block->address;
	struct range *range;

	while ((range = range_next(gap)) && range->start < end) {
		if (range->start - gap >= size)
			return gap;
		gap = round_up(range_end(range), ALIGNMENT);
	}
	return gap < end && end - gap >= size ? gap : 0;
}

/* Gives the caller a reference to the block that contains the address. */
static CUresult find_room(struct context *context, uint64_t size, struct block **block,
			  uint64_t *address)
{
	if (size <= SMALL) {
		for (*block = context->small_blocks; *block; *block = (*block)->next) {
			*address = find_gap(*block, size);
			if (*address) {
				block_get(*block);
				return CUDA_SUCCESS;
			}
		}
	}
	TRY(block_new_mapped(context->device, round_up(size, SIM_GRANULARITY), block));
	if (size <= SMALL) {
		(*block)->next = context->small_blocks;
		context->small_blocks = *block;
	}
	*address = (*block)->address;
	return CUDA_SUCCESS;
}

static CUresult allocate(struct context *context, uint64_t size, CUdeviceptr *pointer)
{
	struct block *block;
	struct range *range;
	uint64_t address;

	if (size > context->device->total)
		return CUDA_ERROR_OUT_OF_MEMORY;
	TRY(find_room(context, size, &block, &address));
	range = range_new(RANGE_ALLOCATED, address, size);
	if (!range) {
		block_drop(context, block);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	range->context = context;
	range->destroy = alloc_destroy;
	range->block = block;
	range->block_offset = address - block->address;
	*pointer = address;
	return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
	API(cuMemGetInfo_v2, NEEDS_CONTEXT);
	struct device *device = api_context->device;

	if (free)
		*free = device->total - device->used;
	if (total)
		*total = device->total;
	return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
	API(cuMemAlloc_v2, NEEDS_CONTEXT);

	TRY(capture_allows_unsafe());
	REQUIRE(pointer && size);
	return allocate(api_context, size, pointer);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
			    unsigned int element)
{
	API(cuMemAllocPitch_v2, NEEDS_CONTEXT);
	uint64_t row, size;

	TRY(capture_allows_unsafe());
	REQUIRE(pointer && pitch && width && height &&
		(element == 4 || element == 8 || element == 16));
	if (width > api_context->device->total)
		return CUDA_ERROR_OUT_OF_MEMORY;
	row = round_up(width, PITCH_ALIGNMENT);
	if (__builtin_mul_overflow(row, height, &size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*pitch = row;
	return allocate(api_context, size, pointer);
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
	API(cuMemFree_v2, NEEDS_INIT);
	return pointer ? range_free(pointer, RANGE_ALLOCATED) : CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer)
{
	API(cuMemGetAddressRange_v2, NEEDS_CONTEXT);
	struct range *range = range_at(pointer);

	if (!range)
		return CUDA_ERROR_NOT_FOUND;
	if (base)
		*base = range->start;
	if (size)
		*size = range->size;
	return CUDA_SUCCESS;
}
