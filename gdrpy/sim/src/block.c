/* SPDX-License-Identifier: MIT */
#include "block.h"

#include <stdlib.h>

static struct block *blocks; /* all blocks */

static void link_block(struct block *block)
{
	block->after = blocks;
	block->link = &blocks;
	if (blocks)
		blocks->link = &block->after;
	blocks = block;
}

static void unlink_block(struct block *block)
{
	*block->link = block->after;
	if (block->after)
		block->after->link = block->link;
}

CUresult block_create(struct device *device, uint64_t size, struct block **block)
{
	struct block *created;
	CUresult result;

	if (size > device->total - device->used)
		return CUDA_ERROR_OUT_OF_MEMORY;
	created = calloc(1, sizeof(*created));
	if (!created)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = backing_create(&created->backing, device->ordinal, size);
	if (result != CUDA_SUCCESS) {
		free(created);
		return result;
	}
	created->device = device;
	created->references = 1;
	device->used += size;
	link_block(created);
	*block = created;
	return CUDA_SUCCESS;
}

CUresult block_import(int fd, struct block **block)
{
	struct block *imported = calloc(1, sizeof(*imported));
	CUresult result;

	if (!imported)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = backing_import(&imported->backing, fd);
	if (result != CUDA_SUCCESS) {
		free(imported);
		return result;
	}
	imported->device = device_get(imported->backing.ordinal);
	imported->imported = true;
	imported->references = 1;
	link_block(imported);
	*block = imported;
	return CUDA_SUCCESS;
}

void block_get(struct block *block)
{
	block->references++;
}

void block_put(struct block *block)
{
	if (--block->references)
		return;
	if (!block->imported)
		block->device->used -= block->backing.size;
	unlink_block(block);
	backing_destroy(&block->backing);
	free(block);
}

void blocks_begin_child(void)
{
	for (struct block *block = blocks; block; block = block->after)
		backing_destroy(&block->backing);
}
