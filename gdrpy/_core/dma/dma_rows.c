/* SPDX-License-Identifier: MIT */
#include "copy/row_blocks.h"
#include "dma/private.h"

/* Constants of the CUDA driver API. */
#define MEMORY_TYPE_HOST 1
#define MEMORY_TYPE_DEVICE 2

static bool copy_block(struct core_dma *dma, bool to_gpu, const struct core_row_block *block,
		       void *stream, struct core_error *error)
{
	struct core_cuda_end host = {
		.memory_type = MEMORY_TYPE_HOST, .host = block->host, .pitch = block->host_pitch};
	struct core_cuda_end device = {.memory_type = MEMORY_TYPE_DEVICE,
				       .device = block->device,
				       .pitch = block->device_pitch};
	struct core_cuda_rows rows = {.nbytes = block->nbytes, .count = block->count};

	if (block->count > 1) {
		rows.from = to_gpu ? host : device;
		rows.to = to_gpu ? device : host;
		return CORE_CUDA_CALL(error, dma, cuMemcpy2DAsync, &rows, stream);
	}
	if (to_gpu)
		return CORE_CUDA_CALL(error, dma, cuMemcpyHtoDAsync, block->device, block->host,
				      block->nbytes, stream);
	return CORE_CUDA_CALL(error, dma, cuMemcpyDtoHAsync, block->host, block->device,
			      block->nbytes, stream);
}

static bool copy_directly(struct core_dma *dma, bool to_gpu, uint64_t device,
			  const struct core_rows *rows, struct core_error *error)
{
	struct core_row_block block = {rows->first, (size_t)rows->stride, device,
				       rows->pitch, rows->nbytes,	  rows->count};

	return core_dma_have_stream(dma, &dma->stream, error) &&
	       copy_block(dma, to_gpu, &block, dma->stream, error) &&
	       CORE_CUDA_CALL(error, dma, cuStreamSynchronize, dma->stream);
}

static bool issue(struct core_dma *dma, bool to_gpu, const struct core_row_block *block,
		  struct core_lane *lane, struct core_staging *staging, struct core_error *error)
{
	return copy_block(dma, to_gpu, block, lane->stream, error) &&
	       CORE_CUDA_CALL(error, dma, cuEventRecord, staging->idle, lane->stream);
}

static void write_staged(struct core_dma *dma, struct core_row_walk *rest, struct core_lane *lane,
			 struct core_error *error)
{
	struct core_row_cursor side = {.rows = rest->rows};
	struct core_row_block block;

	for (unsigned int turn = 0; core_take_rows(rest, &block); turn++) {
		struct core_staging *staging = &lane->staging[turn % 2];

		if (turn >= 2 && !CORE_CUDA_CALL(error, dma, cuEventSynchronize, staging->idle))
			break;
		block.host = staging->memory;
		core_pack_rows(&side, &block);
		if (!issue(dma, true, &block, lane, staging, error))
			break;
	}
}

static void read_staged(struct core_dma *dma, struct core_row_walk *rest, struct core_lane *lane,
			struct core_error *error)
{
	struct core_row_cursor side = {.rows = rest->rows};
	struct core_staging *from = NULL;
	struct core_row_block block, coming;
	bool more = true;

	/* While one block is spread from staging, the next is in flight. */
	for (unsigned int turn = 0; more; turn++) {
		struct core_staging *to = &lane->staging[turn % 2];

		more = core_take_rows(rest, &coming);
		coming.host = to->memory;
		if (more && !issue(dma, false, &coming, lane, to, error))
			break;
		if (from) {
			if (!CORE_CUDA_CALL(error, dma, cuEventSynchronize, from->idle))
				break;
			core_unpack_rows(&side, &block);
		}
		from = to;
		block = coming;
	}
}

static void copy_staged(struct core_dma *dma, bool to_gpu, uint64_t device,
			const struct core_rows *rows, struct core_error *error)
{
	struct core_row_walk rest = {.rows = rows, .device = device};
	struct core_lane *lane = &dma->lanes[0];

	rest.chunk = core_dma_chunk(rows->nbytes * rows->count, 1);
	pthread_mutex_lock(&dma->staging);
	if (core_dma_have_lane(dma, lane, error)) {
		if (to_gpu)
			write_staged(dma, &rest, lane, error);
		else
			read_staged(dma, &rest, lane, error);
		CORE_CUDA_CALL(error, dma, cuStreamSynchronize, lane->stream);
	}
	pthread_mutex_unlock(&dma->staging);
}

bool core_dma_transfer_rows(struct core_dma *dma, uint64_t device, const struct core_rows *rows,
			    bool direct, bool to_gpu, struct core_error *error)
{
	error->status = 0;
	if (!core_dma_enter(dma, error))
		return false;
	if (direct)
		copy_directly(dma, to_gpu, device, rows, error);
	else
		copy_staged(dma, to_gpu, device, rows, error);
	core_dma_leave(dma);
	return !error->status;
}
