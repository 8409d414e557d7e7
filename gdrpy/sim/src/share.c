/* SPDX-License-Identifier: MIT */
/* Sharing memory with other processes, as file descriptors or by fabric handles. */
#include <string.h>
#include <unistd.h>

#include "allocation.h"
#include "range.h"

#define MAGIC 0x51dfab01

/*
 * A fabric handle: 64 bytes that name memory to other nodes. The simulated ones are valid on one
 * machine, for processes of the same user, while the exporter has the memory: its descriptor of the
 * block, /proc/PID/fd/FD, and the block's identity.
 */
struct fabric_handle {
	uint32_t magic;
	uint32_t pid;
	uint32_t fd;
	uint32_t zero;
	uint64_t size;
	uint64_t inode;
	uint64_t zeros[4];
};

_Static_assert(sizeof(struct fabric_handle) == sizeof(CUmemFabricHandle), "the handle is 64 bytes");

CUresult fabric_check(void)
{
	switch (sim.fabric) {
	case FABRIC_USABLE:
		return CUDA_SUCCESS;
	case FABRIC_NO_CHANNEL:
		return CUDA_ERROR_NOT_PERMITTED;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

static struct fabric_handle words_of(const struct block *block, uint32_t pid, uint32_t fd)
{
	return (struct fabric_handle){
		.magic = MAGIC,
		.pid = pid,
		.fd = fd,
		.size = block->backing.size,
		.inode = block->backing.inode,
	};
}

static void fabric_export(const struct block *block, CUmemFabricHandle *handle)
{
	struct fabric_handle words =
		words_of(block, (uint32_t)getpid(), (uint32_t)block->backing.fd);

	memcpy(handle, &words, sizeof(words));
}

/* The block that a handle names, with a reference. */
static CUresult fabric_import(const CUmemFabricHandle *handle, struct block **block)
{
	struct fabric_handle words, found;

	memcpy(&words, handle, sizeof(words));
	REQUIRE(words.magic == MAGIC);
	TRY(block_take(words.pid, words.fd, block));
	/* Another block may have the descriptor's number by now. */
	found = words_of(*block, words.pid, words.fd);
	if (memcmp(&words, &found, sizeof(words)) || !(*block)->device) {
		block_put(*block);
		return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

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

	REQUIRE(shareable && allocation && !flags &&
		(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
		 type == CU_MEM_HANDLE_TYPE_FABRIC));
	/* An imported allocation has no handle types: only its owner can export it. */
	REQUIRE(allocation->properties.requestedHandleTypes & type);
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

	REQUIRE(handle);
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

	REQUIRE(handle && size && pointer % page == 0 && size % page == 0 &&
		pointer + size >= pointer && type == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD &&
		!(flags & ~(unsigned long long)CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE));
	REQUIRE(is_device_memory(pointer, size, page));
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
