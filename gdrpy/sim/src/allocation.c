/* SPDX-License-Identifier: MIT */
#include "allocation.h"

#include <stdlib.h>
#include <string.h>

#include "range.h"
#include "table.h"

static struct table allocations;

struct allocation *allocation_get(CUmemGenericAllocationHandle handle)
{
	struct allocation *allocation = table_find(&allocations, handle);

	return allocation && allocation->retains ? allocation : NULL;
}

CUresult allocation_new(struct block *block, const CUmemAllocationProp *properties,
			CUmemGenericAllocationHandle *handle)
{
	struct allocation *allocation = malloc(sizeof(*allocation));
	/* Away from small numbers, so that a descriptor or a count is not a handle by chance. */
	uint64_t number = 0x51d00000 + sim_next_id();

	if (!allocation || !table_insert(&allocations, number, allocation)) {
		free(allocation);
		block_put(block);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*allocation = (struct allocation){number, 1, 0, block, *properties};
	*handle = number;
	return CUDA_SUCCESS;
}

void allocation_put(struct allocation *allocation)
{
	if (allocation->retains || allocation->mappings)
		return;
	table_remove(&allocations, allocation->handle);
	block_put(allocation->block);
	free(allocation);
}

static CUresult check_properties(const CUmemAllocationProp *properties)
{
	static const unsigned char zero[sizeof(properties->allocFlags.reserved)];

	REQUIRE(properties->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
		properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
		!properties->win32HandleMetaData && properties->allocFlags.compressionType <= 1 &&
		!memcmp(properties->allocFlags.reserved, zero, sizeof(zero)));
	if (!device_get(properties->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	REQUIRE(!(properties->requestedHandleTypes &
		  ~(unsigned int)(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR |
				  CU_MEM_HANDLE_TYPE_FABRIC)));
	return properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC ? fabric_check()
									    : CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties,
				       unsigned int option)
{
	API(cuMemGetAllocationGranularity, NEEDS_INIT);

	REQUIRE(granularity && properties && option <= CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
	*granularity = SIM_GRANULARITY;
	return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
		     const CUmemAllocationProp *properties, unsigned long long flags)
{
	API(cuMemCreate, NEEDS_INIT);
	CUmemAllocationProp granted;
	struct block *block;

	REQUIRE(handle && properties && !flags && size && size % SIM_GRANULARITY == 0);
	TRY(check_properties(properties));
	granted = *properties;
	granted.allocFlags.compressionType = 0;

	TRY(block_create(device_get(properties->location.id), size, &block));
	return allocation_new(block, &granted, handle);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	API(cuMemRelease, NEEDS_INIT);
	struct allocation *allocation = allocation_get(handle);

	REQUIRE(allocation);
	allocation->retains--;
	allocation_put(allocation);
	return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *pointer)
{
	API(cuMemRetainAllocationHandle, NEEDS_INIT);
	struct range *range = range_at((uintptr_t)pointer);

	REQUIRE(handle && range && range->kind == RANGE_MAPPED);
	range->allocation->retains++;
	*handle = range->allocation->handle;
	return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
						CUmemGenericAllocationHandle handle)
{
	API(cuMemGetAllocationPropertiesFromHandle, NEEDS_INIT);
	struct allocation *allocation = allocation_get(handle);

	REQUIRE(properties && allocation);
	*properties = allocation->properties;
	return CUDA_SUCCESS;
}
