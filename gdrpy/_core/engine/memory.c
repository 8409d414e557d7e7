/* SPDX-License-Identifier: MIT */
/* GPU memory in an engine: taken in by its descriptor or from another client, and mapped. */
#include <errno.h>
#include <stdlib.h>

#include "engine/private.h"

static void drop_part(struct core_link *link, const struct core_part_of_gpu *part)
{
	struct core_error ignored;

	core_link_unmap(link, part->block.object, part->va, &ignored);
	core_rm_release(link->client, &part->block, &ignored);
}

static void drop_parts(struct core_link *link, struct core_part_of_gpu *parts, unsigned int count)
{
	while (count)
		drop_part(link, &parts[--count]);
}

/* Map a block that was just taken into the link's client; it is released if this fails. */
static int map_part(struct core_link *link, struct core_part_of_gpu *part, struct core_error *error)
{
	struct core_error ignored;

	if (part->nbytes > part->block.nbytes || part->offset > part->block.nbytes - part->nbytes)
		core_fail(error, CORE_FAILED_SIZE, EINVAL,
			  "the copy engine: %llu bytes at offset %llu lie outside the block of "
			  "%llu",
			  (unsigned long long)part->nbytes, (unsigned long long)part->offset,
			  (unsigned long long)part->block.nbytes);
	else if (!core_link_map(link, part->block.object, part->block.nbytes, 0, &part->va, error))
		return 0;
	core_rm_release(link->client, &part->block, &ignored);
	return -1;
}

static int duplicate_part(struct core_link *link, uint32_t client, uint32_t object,
			  struct core_part_of_gpu *part, struct core_error *error)
{
	struct core_ipc_info source = {.client = client, .object = object};

	if (core_rm_duplicate(link->client, &link->device->gpu, -1, &source, &part->block, error))
		return -1;
	return map_part(link, part, error);
}

int core_engine_move(struct core_engine *engine, struct core_link *link, struct core_error *error)
{
	uint32_t client = core_rm_handle(engine->link->client);

	/* If one fails, the parts already moved are given back with the new link. */
	for (struct core_engine_memory *memory = engine->memories; memory; memory = memory->next)
		for (unsigned int i = 0; i < memory->count; i++) {
			struct core_part_of_gpu *part = &memory->parts[i];

			if (duplicate_part(link, client, part->block.object, part, error))
				return -1;
		}
	return 0;
}

struct taking {
	struct core_engine_memory *memory;
	int fd;					/* or, if it is -1: */
	const struct core_engine_block *blocks; /* as many as the memory has parts */
};

static int take_part(struct core_link *link, const struct taking *taking, unsigned int i,
		     struct core_error *error)
{
	struct core_part_of_gpu *part = &taking->memory->parts[i];

	if (taking->fd < 0)
		return duplicate_part(link, taking->blocks[i].client, taking->blocks[i].object,
				      part, error);
	if (core_rm_import(link->client, taking->fd, &part->block, error))
		return -1;
	return map_part(link, part, error);
}

static int take(struct core_engine *engine, void *job, struct core_error *error)
{
	const struct taking *taking = job;
	struct core_engine_memory *memory = taking->memory;

	for (unsigned int i = 0; i < memory->count; i++)
		if (take_part(engine->link, taking, i, error)) {
			drop_parts(engine->link, memory->parts, i);
			return -1;
		}
	pthread_mutex_lock(&engine->list);
	memory->next = engine->memories;
	engine->memories = memory;
	pthread_mutex_unlock(&engine->list);
	return 0;
}

static struct core_engine_memory *new_memory(const struct core_rm_gpu *gpu, unsigned int count,
					     struct core_error *error)
{
	struct core_engine *engine = core_engine_of(gpu, error);
	struct core_engine_memory *memory;

	if (!engine)
		return NULL;
	memory = calloc(1, sizeof(*memory) + count * sizeof(memory->parts[0]));
	if (!memory)
		return core_fail_malloc_null(error);
	memory->engine = engine;
	memory->count = count;
	return memory;
}

static struct core_engine_memory *finish(struct taking *taking, struct core_error *error)
{
	struct core_engine_memory *memory = taking->memory;

	for (unsigned int i = 0; i < memory->count; i++)
		memory->nbytes += memory->parts[i].nbytes;
	if (!core_engine_run(memory->engine, take, taking, error))
		return memory;
	free(memory);
	return NULL;
}

struct core_engine_memory *core_engine_take_export(int fd, uint64_t nbytes,
						   struct core_error *error)
{
	struct taking taking = {.fd = fd};
	struct core_rm_gpu gpu;

	if (core_engine_find_gpu(fd, &gpu, error))
		return NULL;
	taking.memory = new_memory(&gpu, 1, error);
	if (!taking.memory)
		return NULL;
	taking.memory->parts[0].nbytes = nbytes;
	return finish(&taking, error);
}

struct core_engine_memory *core_engine_take_blocks(const struct core_rm_gpu *gpu,
						   const struct core_engine_block *blocks,
						   unsigned int count, struct core_error *error)
{
	struct taking taking = {.fd = -1, .blocks = blocks};

	taking.memory = new_memory(gpu, count, error);
	if (!taking.memory)
		return NULL;
	for (unsigned int i = 0; i < count; i++) {
		taking.memory->parts[i].offset = blocks[i].offset;
		taking.memory->parts[i].nbytes = blocks[i].nbytes;
	}
	return finish(&taking, error);
}

void core_engine_set_place(struct core_engine_memory *memory, uint64_t address, uint64_t buffer_id)
{
	memory->address = address;
	memory->buffer_id = buffer_id;
}

/* An address may be that of another allocation now than of the one that was pinned there. */
static bool is_one_allocation(const struct core_engine_memory *one,
			      const struct core_engine_memory *other)
{
	if (one == other)
		return true;
	return one->address && other->address &&
	       (!one->buffer_id || !other->buffer_id || one->buffer_id == other->buffer_id);
}

bool core_engine_overlap(const struct core_engine_memory *one, uint64_t offset,
			 const struct core_engine_memory *other, uint64_t other_offset,
			 uint64_t nbytes)
{
	uint64_t here = one->address + offset, there = other->address + other_offset;

	return is_one_allocation(one, other) && here < there + nbytes && there < here + nbytes;
}

void core_engine_release(struct core_engine_memory *memory)
{
	struct core_engine_memory **link;
	struct core_engine *engine = memory->engine;

	if (core_engine_is_own(engine)) {
		pthread_rwlock_rdlock(&engine->lock);
		pthread_mutex_lock(&engine->list);
		for (link = &engine->memories; *link != memory; link = &(*link)->next)
			;
		*link = memory->next;
		pthread_mutex_unlock(&engine->list);
		if (engine->link)
			drop_parts(engine->link, memory->parts, memory->count);
		pthread_rwlock_unlock(&engine->lock);
	}
	free(memory);
}
