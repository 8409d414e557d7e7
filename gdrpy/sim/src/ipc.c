/* SPDX-License-Identifier: MIT */
/*
 * Legacy IPC: cuMemAlloc memory named by 64 bytes. The words that other programs read are where a
 * real driver has them. client and memory name the block's descriptor in its owner, so that another
 * process finds it as /proc/PID/fd/FD, and the inode tells whether it is still the same block. If a
 * small allocation was freed but its block lives on, that is not detected.
 */
#include <string.h>
#include <unistd.h>

#include "context.h"
#include "range.h"

#define MAGIC 0x51d0c0de
#define CLIENT 0xc1000000
#define PAGE 4096

struct ipc_handle {
	uint32_t magic;
	uint32_t zero0;
	uint32_t pid;
	uint32_t zero1;
	uint64_t size;
	uint32_t block_pages;
	uint32_t block_offset;
	uint32_t zero2[4];
	uint32_t client;
	uint32_t memory;
	uint64_t inode;
};

_Static_assert(sizeof(struct ipc_handle) == CU_IPC_HANDLE_SIZE, "the handle is 64 bytes");

/* For a large block, a real driver reports only the size that its one allocation takes. */
static uint32_t block_pages(const struct range *range)
{
	uint64_t size = range->block->backing.size;

	return (uint32_t)((size > SIM_GRANULARITY ? range->size + PAGE - 1 : size) / PAGE);
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer)
{
	API(cuIpcGetMemHandle, NEEDS_CONTEXT);
	struct ipc_handle words = {.magic = MAGIC, .pid = (uint32_t)getpid()};
	struct range *range = range_at(pointer);

	REQUIRE(handle && range && range->kind == RANGE_ALLOCATED);
	words.size = range->size;
	words.block_pages = block_pages(range);
	words.block_offset = (uint32_t)range->block_offset;
	words.client = CLIENT | words.pid;
	words.memory = (uint32_t)range->block->backing.fd;
	words.inode = range->block->backing.inode;
	memcpy(handle, &words, sizeof(words));
	return CUDA_SUCCESS;
}

/* Refuses handles of other drivers, and blocks that have been replaced. */
static CUresult import_block(const struct ipc_handle *words, struct block **block)
{
	uint64_t block_size = (uint64_t)words->block_pages * PAGE;

	REQUIRE(words->magic == MAGIC && words->client == (CLIENT | words->pid) && words->size &&
		words->size <= block_size && words->block_offset <= block_size - words->size);
	TRY(block_take(words->pid, words->memory, block));
	if ((*block)->backing.inode != words->inode || !(*block)->device ||
	    (*block)->backing.size / SIM_GRANULARITY != (block_size - 1) / SIM_GRANULARITY + 1) {
		block_put(*block);
		return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

static void opened_destroy(struct range *range)
{
	block_unmap(range->block, range->start - range->block_offset);
	block_put(range->block);
}

/* The range in which this context already has the memory open. */
static struct range *find_opened(const struct context *context, const struct ipc_handle *words)
{
	struct range *range;

	for (uint64_t at = 0; (range = range_next(at)); at = range_end(range))
		if (range->kind == RANGE_OPENED && range->context == context &&
		    range->block->backing.inode == words->inode &&
		    range->block_offset == words->block_offset && range->size == words->size)
			return range;
	return NULL;
}

/* The range takes the caller's reference to the block, which is dropped on failure. */
static CUresult map_block(struct context *context, const struct ipc_handle *words,
			  struct block *block, CUdeviceptr *pointer)
{
	struct range *range = NULL;
	uint64_t address = 0;

	if (block_map(block, &address) == CUDA_SUCCESS)
		range = range_new(RANGE_OPENED, address + words->block_offset, words->size);
	if (!range) {
		if (address)
			block_unmap(block, address);
		block_put(block);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	range->context = context;
	range->destroy = opened_destroy;
	range->block = block;
	range->block_offset = words->block_offset;
	range->opens = 1;
	*pointer = range->start;
	return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags)
{
	API(cuIpcOpenMemHandle_v2, NEEDS_CONTEXT);
	struct ipc_handle words;
	struct range *opened;
	struct block *block;

	memcpy(&words, &handle, sizeof(words));
	REQUIRE(pointer && flags == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	if (words.pid == (uint32_t)getpid())
		return CUDA_ERROR_INVALID_CONTEXT;
	TRY(import_block(&words, &block));
	opened = find_opened(api_context, &words);
	if (!opened)
		return map_block(api_context, &words, block, pointer);
	block_put(block);
	opened->opens++;
	*pointer = opened->start;
	return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
	API(cuIpcCloseMemHandle, NEEDS_CONTEXT);
	struct range *range = range_starting(pointer, RANGE_OPENED);

	REQUIRE(range);
	return --range->opens ? CUDA_SUCCESS : range_free(pointer, RANGE_OPENED);
}

/* Events between processes are not simulated; the device's attribute says so. */

CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event)
{
	(void)handle;
	(void)event;
	API(cuIpcGetEventHandle, NEEDS_CONTEXT);

	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle)
{
	(void)event;
	(void)handle;
	API(cuIpcOpenEventHandle, NEEDS_CONTEXT);

	return CUDA_ERROR_NOT_SUPPORTED;
}
