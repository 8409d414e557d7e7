/* SPDX-License-Identifier: MIT */
/* Copies by address: cut where memory consists of several blocks, and at the engine's limit. */
#include <errno.h>

#include "engine/methods.h"
#include "engine/private.h"

uint64_t core_side_address(const struct core_side *side, uint64_t done, uint64_t *left)
{
	uint64_t at = side->at + done;
	const struct core_part_of_gpu *part;

	if (!side->memory)
		return at;
	for (part = side->memory->parts; at >= part->nbytes; part++)
		at -= part->nbytes;
	if (*left > part->nbytes - at)
		*left = part->nbytes - at;
	return part->va + part->offset + at;
}

uint64_t core_cut_copy(const struct core_side *to, const struct core_side *from, uint64_t nbytes,
		       uint64_t done, struct core_engine_piece *piece)
{
	uint64_t left = nbytes - done < CORE_COPY_MOST ? nbytes - done : CORE_COPY_MOST;

	*piece = (struct core_engine_piece){.kind = CORE_PIECE_COPY};
	piece->to = core_side_address(to, done, &left);
	piece->from = core_side_address(from, done, &left);
	piece->nbytes = (uint32_t)left;
	return left;
}

int core_channel_copy(struct core_channel *channel, struct core_side to, struct core_side from,
		      uint64_t nbytes, uint32_t *value, struct core_error *error)
{
	struct core_engine_piece pieces[CORE_ENTRY_PIECES];
	uint64_t done = 0;

	while (done < nbytes) {
		unsigned int count = 0;

		while (count < CORE_ENTRY_PIECES && done < nbytes)
			done += core_cut_copy(&to, &from, nbytes, done, &pieces[count++]);
		if (core_channel_submit(channel, pieces, count, value, error))
			return -1;
	}
	return 0;
}

struct engine_copy {
	struct core_side to, from;
	uint64_t nbytes;
};

static int run_copy(struct core_engine *engine, void *job, struct core_error *error)
{
	const struct engine_copy *copy = job;
	struct core_channel *channel = core_stage_channel(engine, copy->nbytes, error);
	uint32_t value;

	return !channel ||
			       core_channel_copy(channel, copy->to, copy->from, copy->nbytes,
						 &value, error) ||
			       core_channel_wait(channel, value, error)
		       ? -1
		       : 0;
}

int core_engine_copy(struct core_engine_memory *to, uint64_t to_offset,
		     struct core_engine_memory *from, uint64_t from_offset, uint64_t nbytes,
		     struct core_error *error)
{
	struct engine_copy copy = {{to, to_offset}, {from, from_offset}, nbytes};

	if (to->engine != from->engine)
		return core_fail(
			error, CORE_FAILED_HANDLE, EINVAL,
			"the copy engine copies between memory of one GPU, and this lies on "
			"two: copy through host memory, or by CUDA");
	return nbytes ? core_engine_run(to->engine, run_copy, &copy, error) : 0;
}

struct fill {
	struct core_side to;
	uint64_t nbytes;
	uint8_t value;
};

/* Whole words where there are any, because the engine fills by elements. */
static uint64_t cut_fill(const struct fill *fill, uint64_t done, struct core_engine_piece *piece)
{
	uint64_t left = fill->nbytes - done;

	if (left > CORE_COPY_MOST)
		left = CORE_COPY_MOST;
	*piece = (struct core_engine_piece){.kind = CORE_PIECE_FILL,
					    .value = fill->value * 0x01010101u};
	piece->to = core_side_address(&fill->to, done, &left);
	piece->words = left >= sizeof(uint32_t) && piece->to % sizeof(uint32_t) == 0;
	if (piece->words)
		left -= left % sizeof(uint32_t);
	else if (left > sizeof(uint32_t) - piece->to % sizeof(uint32_t))
		left = sizeof(uint32_t) - piece->to % sizeof(uint32_t);
	piece->nbytes = (uint32_t)(piece->words ? left / sizeof(uint32_t) : left);
	return left;
}

static int run_fill(struct core_engine *engine, void *job, struct core_error *error)
{
	const struct fill *fill = job;
	struct core_channel *channel = core_stage_channel(engine, fill->nbytes, error);
	struct core_engine_piece pieces[CORE_ENTRY_PIECES];
	uint64_t done = 0;
	uint32_t value = 0;

	if (!channel)
		return -1;
	while (done < fill->nbytes) {
		unsigned int count = 0;

		while (count < CORE_ENTRY_PIECES && done < fill->nbytes)
			done += cut_fill(fill, done, &pieces[count++]);
		if (core_channel_submit(channel, pieces, count, &value, error))
			return -1;
	}
	return core_channel_wait(channel, value, error);
}

int core_engine_fill(struct core_engine_memory *memory, uint64_t offset, uint8_t value,
		     uint64_t nbytes, struct core_error *error)
{
	struct fill fill = {{memory, offset}, nbytes, value};

	return nbytes ? core_engine_run(memory->engine, run_fill, &fill, error) : 0;
}
