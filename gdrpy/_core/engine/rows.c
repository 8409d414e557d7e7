/* SPDX-License-Identifier: MIT */
/*
 * Copies between an array's rows and rows a pitch apart in GPU memory, by the calling thread:
 * through staging, or directly if they are registered.
 */
#include "copy/row_blocks.h"
#include "engine/methods.h"
#include "engine/private.h"

struct rows_job {
	struct core_engine_memory *memory;
	uint64_t offset;
	const struct core_rows *rows;
	bool to_gpu;
	struct core_registration *registration; /* of the rows, or NULL */
};

/* A block on its way; `device` is its offset in the memory. */
struct rows_flight {
	struct core_row_block block;
	uint32_t value;
};

/*
 * Submit a block, whose host memory is at an address of the engine. Lines may not cross from one
 * part of the memory to the next: then each row is a copy.
 */
static int fly(const struct rows_job *job, struct core_channel *channel, uint64_t address,
	       struct rows_flight *flight, struct core_error *error)
{
	const struct core_row_block *block = &flight->block;
	const struct core_part_of_gpu *part = job->memory->parts;
	struct core_engine_piece piece = {
		.kind = CORE_PIECE_LINES,
		.nbytes = (uint32_t)block->nbytes,
		.lines = (uint32_t)block->count,
		.to_pitch = (uint32_t)(job->to_gpu ? block->device_pitch : block->host_pitch),
		.from_pitch = (uint32_t)(job->to_gpu ? block->host_pitch : block->device_pitch),
	};

	if (block->count > 1 && job->memory->count == 1) {
		uint64_t gpu = part->va + part->offset + block->device;

		piece.to = job->to_gpu ? gpu : address;
		piece.from = job->to_gpu ? address : gpu;
		return core_channel_submit(channel, &piece, 1, &flight->value, error);
	}
	for (size_t i = 0; i < block->count; i++) {
		struct core_side gpu = {job->memory, block->device + i * block->device_pitch};
		struct core_side host = {NULL, address + i * block->host_pitch};

		if (core_channel_copy(channel, job->to_gpu ? gpu : host, job->to_gpu ? host : gpu,
				      block->nbytes, &flight->value, error))
			return -1;
	}
	return 0;
}

static int write_rows(const struct rows_job *job, struct core_row_walk *walk,
		      struct core_channel *channel, struct core_staging_lane *lane,
		      struct core_error *error)
{
	struct core_row_cursor cursor = {.rows = job->rows};
	struct rows_flight flights[CORE_LANE_CHUNKS], *flight = flights;

	for (unsigned int turn = 0;; turn++) {
		size_t at = turn % CORE_LANE_CHUNKS * CORE_CHUNK_NBYTES;
		uint32_t last = turn ? flight->value : 0;

		flight = &flights[turn % CORE_LANE_CHUNKS];
		if (turn >= CORE_LANE_CHUNKS && core_channel_wait(channel, flight->value, error))
			return -1;
		if (!core_take_rows(walk, &flight->block))
			return turn ? core_channel_wait(channel, last, error) : 0;
		flight->block.host = lane->memory.host + at;
		core_pack_rows(&cursor, &flight->block);
		if (fly(job, channel, lane->memory.va + at, flight, error))
			return -1;
	}
}

static int read_rows(const struct rows_job *job, struct core_row_walk *walk,
		     struct core_channel *channel, struct core_staging_lane *lane,
		     struct core_error *error)
{
	struct core_row_cursor cursor = {.rows = job->rows};
	struct rows_flight flights[CORE_LANE_CHUNKS];
	unsigned int begun = 0, done = 0;
	bool more = true;

	for (;;) {
		while (more && begun - done < CORE_LANE_CHUNKS) {
			size_t at = begun % CORE_LANE_CHUNKS * CORE_CHUNK_NBYTES;
			struct rows_flight *flight = &flights[begun % CORE_LANE_CHUNKS];

			more = core_take_rows(walk, &flight->block);
			flight->block.host = lane->memory.host + at;
			if (more && fly(job, channel, lane->memory.va + at, flight, error))
				return -1;
			begun += more;
		}
		if (begun == done)
			return 0;
		if (core_channel_wait(channel, flights[done % CORE_LANE_CHUNKS].value, error))
			return -1;
		core_unpack_rows(&cursor, &flights[done++ % CORE_LANE_CHUNKS].block);
	}
}

/* Copy registered rows, the first of which is at an address of the engine. */
static int run_directly(const struct rows_job *job, struct core_row_walk *walk,
			struct core_channel *channel, uint64_t first, struct core_error *error)
{
	const size_t stride = (size_t)job->rows->stride;
	struct rows_flight flight;
	uint64_t at;

	walk->chunk = CORE_COPY_MOST;
	for (;;) {
		at = first + walk->row * stride + walk->done;
		if (!core_take_rows(walk, &flight.block))
			return core_channel_wait(channel, flight.value, error);
		flight.block.host_pitch = stride;
		if (fly(job, channel, at, &flight, error))
			return -1;
	}
}

static int run(struct core_engine *engine, void *context, struct core_error *error)
{
	const struct rows_job *job = context;
	const struct core_rows *rows = job->rows;
	const size_t nbytes = rows->nbytes * rows->count;
	struct core_row_walk walk = {.rows = rows,
				     .device = job->offset,
				     .chunk = core_stage_chunk(nbytes, 1, job->to_gpu)};
	struct core_channel *channel = core_stage_channel(engine, nbytes, error);
	struct core_staging_lane *lane;
	uint64_t va;
	int ret;

	if (!channel)
		return -1;
	if (job->registration &&
	    core_registration_reach(job->registration, engine, rows->first, &va))
		return run_directly(job, &walk, channel, va, error);
	lane = core_lane_take(engine, CORE_LANE_ROWS, error);
	if (!lane)
		return -1;
	ret = job->to_gpu ? write_rows(job, &walk, channel, lane, error)
			  : read_rows(job, &walk, channel, lane, error);
	core_lane_give_back(engine, lane);
	return ret;
}

int core_engine_transfer_rows(struct core_engine_memory *memory, uint64_t offset,
			      const struct core_rows *rows, bool to_gpu, struct core_error *error)
{
	struct rows_job job = {memory, offset, rows, to_gpu, NULL};
	int ret;

	if (core_rows_are_lines(rows))
		job.registration =
			core_registration_hold(rows->first, core_rows_extent(rows), to_gpu);
	ret = core_engine_run(memory->engine, run, &job, error);
	if (job.registration)
		core_registration_let_go(job.registration);
	return ret;
}
