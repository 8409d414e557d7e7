/* SPDX-License-Identifier: MIT */
#include "fabric.h"

#include <string.h>
#include <unistd.h>

#include "sim.h"

#define MAGIC 0x51dfab01

/* The exporter's descriptor of the block, /proc/PID/fd/FD, and the block's identity. */
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

void fabric_export(const struct block *block, CUmemFabricHandle *handle)
{
	struct fabric_handle words =
		words_of(block, (uint32_t)getpid(), (uint32_t)block->backing.fd);

	memcpy(handle, &words, sizeof(words));
}

CUresult fabric_import(const CUmemFabricHandle *handle, struct block **block)
{
	struct fabric_handle words, found;

	memcpy(&words, handle, sizeof(words));
	if (words.magic != MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(block_take(words.pid, words.fd, block));
	/* Another block may have the descriptor's number by now. */
	found = words_of(*block, words.pid, words.fd);
	if (memcmp(&words, &found, sizeof(words)) || !(*block)->device) {
		block_put(*block);
		return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}
