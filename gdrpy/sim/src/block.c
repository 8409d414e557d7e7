/* SPDX-License-Identifier: MIT */
#include "block.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "address.h"

static struct block *blocks; /* all blocks */

/* Gives the block that holds the backing, or destroys the backing. */
static CUresult block_new(struct backing backing, struct device *device, bool imported,
			  struct block **block)
{
	struct block *created = malloc(sizeof(*created));

	if (!created) {
		backing_destroy(&backing);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*created = (struct block){
		.backing = backing,
		.device = device,
		.imported = imported,
		.references = 1,
		.after = blocks,
		.link = &blocks,
	};
	if (blocks)
		blocks->link = &created->after;
	blocks = created;
	*block = created;
	return CUDA_SUCCESS;
}

CUresult block_create(struct device *device, uint64_t size, struct block **block)
{
	struct backing backing;

	if (size > device->total - device->used)
		return CUDA_ERROR_OUT_OF_MEMORY;
	TRY(backing_kind()->create(&backing, device->ordinal, size));
	TRY(block_new(backing, device, false, block));
	device->used += size;
	return CUDA_SUCCESS;
}

CUresult block_import(int fd, struct block **block)
{
	struct backing backing;

	TRY(backing_kind()->import(&backing, fd));
	return block_new(backing, device_get(backing.ordinal), true, block);
}

CUresult block_take(uint32_t pid, uint32_t fd, struct block **block)
{
	int taken = backing_kind()->take(pid, fd);
	CUresult result;

	REQUIRE(taken >= 0);
	result = block_import(taken, block);
	close(taken);
	return result == CUDA_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult block_map(const struct block *block, uint64_t *address)
{
	uint64_t reserved = address_reserve(block->backing.size, SIM_GRANULARITY, 0);
	CUresult result;

	if (!reserved)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = backing_map(&block->backing, reserved, PROT_READ | PROT_WRITE);
	if (result == CUDA_SUCCESS)
		*address = reserved;
	else
		address_release(reserved, block->backing.size);
	return result;
}

void block_unmap(const struct block *block, uint64_t address)
{
	backing_unmap(&block->backing, address);
	address_release(address, block->backing.size);
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
	*block->link = block->after;
	if (block->after)
		block->after->link = block->link;
	backing_destroy(&block->backing);
	free(block);
}

void blocks_begin_child(void)
{
	for (struct block *block = blocks; block; block = block->after)
		backing_destroy(&block->backing);
}
