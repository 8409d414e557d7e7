/* SPDX-License-Identifier: MIT */
/* Sharing memory with other processes, as file descriptors or by fabric handles. */
#include <unistd.h>

#include "allocation.h"
#include "fabric.h"
#include "range.h"

static CUresult export_fd(const struct block *block, int *fd)
{
	int exported = backing_kind()->export(&block->backing);

	if (exported < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	*fd = exported;
	return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
				      unsigned int type, unsigned long long flags)
{
	API(cuMemExportToShareableHandle, NEEDS_INIT);
	struct allocation *allocation = allocation_get(handle);

	if (!shareable || !allocation || flags ||
	    (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && type != CU_MEM_HANDLE_TYPE_FABRIC))
		return CUDA_ERROR_INVALID_VALUE;
	/* An imported allocation has no handle types: only its owner can export it. */
	if (!(allocation->properties.requestedHandleTypes & type))
		return CUDA_ERROR_INVALID_VALUE;
	if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
		fabric_export(allocation->block, shareable);
		return CUDA_SUCCESS;
	}
	return export_fd(allocation->block, shareable);
}

static CUresult import_block(void *shareable, unsigned int type, struct block **block)
{
	switch (type) {
	case CU_MEM_HANDLE_TYPE_NONE:
		return CUDA_ERROR_INVALID_VALUE;
	case CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR:
		return block_import((int)(intptr_t)shareable, block);
	case CU_MEM_HANDLE_TYPE_FABRIC:
		TRY(fabric_check());
		return shareable ? fabric_import(shareable, block) : CUDA_ERROR_INVALID_VALUE;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
					unsigned int type)
{
	API(cuMemImportFromShareableHandle, NEEDS_INIT);
	CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location.type = CU_MEM_LOCATION_TYPE_DEVICE,
	};
	struct block *block;

	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(import_block(shareable, type, &block));
	properties.location.id = block->device ? block->device->ordinal : CU_DEVICE_INVALID;
	return allocation_new(block, &properties, handle);
}

/* Whether the range is device memory without holes. */
static bool is_device_memory(uint64_t start, uint64_t size, uint64_t page)
{
	uint64_t end = start + size;

	while (start < end) {
		struct range *range = range_at(start);

		if (!range || (range->kind != RANGE_ALLOCATED && range->kind != RANGE_MAPPED))
			return false;
		start = range_end(range);
		/* A cuMemAlloc allocation may be exported up to the end of its last page. */
		if (range->kind == RANGE_ALLOCATED)
			return end <= (start + page - 1) / page * page;
	}
	return true;
}

CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr pointer, size_t size,
				       unsigned int type, unsigned long long flags)
{
	API(cuMemGetHandleForAddressRange, NEEDS_CONTEXT);
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct range *range;

	if (!handle || !size || pointer % page || size % page || pointer + size < pointer ||
	    type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD ||
	    flags & ~(unsigned long long)CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE)
		return CUDA_ERROR_INVALID_VALUE;
	if (!is_device_memory(pointer, size, page))
		return CUDA_ERROR_INVALID_VALUE;
	/*
	 * A memory file stands in for the dma-buf, and its offset 0 must be the range's start. So
	 * ranges within a block or across blocks, which a real driver exports, are refused.
	 */
	range = range_at(pointer);
	if (flags || pointer - range->start + range->block_offset ||
	    size > range->block->backing.size)
		return CUDA_ERROR_NOT_SUPPORTED;
	return export_fd(range->block, handle);
}
