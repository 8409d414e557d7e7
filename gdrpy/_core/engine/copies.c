/* SPDX-License-Identifier: MIT */
/* Copies by address: cut where memory consists of several blocks, and at the engine's limit. */
#include "engine/methods.h"
#include "engine/private.h"

#define MOST_AT_ONCE 16

/* The address of a byte of a side; *left becomes the bytes from there on, if they are fewer. */
static uint64_t address_of(const struct core_side *side, uint64_t done, uint64_t *left)
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

int core_channel_copy(struct core_channel *channel, struct core_side to, struct core_side from,
		      uint64_t nbytes, uint32_t *value, struct core_error *error)
{
	struct core_piece pieces[MOST_AT_ONCE];
	uint64_t done = 0, left;
	unsigned int count;

	while (done < nbytes) {
		for (count = 0; count < MOST_AT_ONCE && done < nbytes; count++, done += left) {
			struct core_piece *piece = &pieces[count];

			left = nbytes - done < CORE_COPY_MOST ? nbytes - done : CORE_COPY_MOST;
			*piece = (struct core_piece){.kind = CORE_PIECE_COPY};
			piece->to = address_of(&to, done, &left);
			piece->from = address_of(&from, done, &left);
			piece->nbytes = (uint32_t)left;
		}
		if (core_channel_submit(channel, pieces, count, value, error))
			return -1;
	}
	return 0;
}

int core_engine_write(struct core_engine_memory *memory, uint64_t offset, const void *host,
		      size_t nbytes, struct core_error *error)
{
	return core_engine_stage(memory, offset, (char *)host, nbytes, true, error);
}

int core_engine_read(struct core_engine_memory *memory, void *host, uint64_t offset, size_t nbytes,
		     struct core_error *error)
{
	return core_engine_stage(memory, offset, host, nbytes, false, error);
}
