/* SPDX-License-Identifier: MIT */
/* Memory of blocks that have their own, which they give back while the arena sleeps. */
#include "arena/private.h"

#include <errno.h>

int gdrpy_arena_back(const struct arena *arena, const struct gdrpy_arena_block *block)
{
	const struct gdrpy_arena_memory *memory = &arena->memory;
	uint64_t handle, nbytes = arena_size(*block);
	int result = memory->create(&handle, nbytes, memory->properties, 0);

	if (result)
		return result;
	result = memory->map(block->start, nbytes, 0, handle, 0);
	memory->release(handle); /* the mapping keeps the memory */
	if (result)
		return result;
	result = memory->set_access(block->start, nbytes, memory->access, 1);
	if (result)
		memory->unmap(block->start, nbytes);
	return result;
}

static void take_back(struct arena *arena, size_t count)
{
	for (size_t i = 0; i < count; i++)
		arena->memory.unmap(arena->blocks[i].start, arena_size(arena->blocks[i]));
}

static bool all_kept(const struct arena *arena)
{
	for (size_t i = 0; i < arena->count; i++)
		if (arena->blocks[i].kept == GDRPY_ARENA_NOT_KEPT)
			return false;
	return true;
}

static void forget(struct arena *arena)
{
	for (size_t i = 0; i < arena->count; i++)
		arena->blocks[i].kept = GDRPY_ARENA_NOT_KEPT;
}

static int keep(struct arena *arena, char *host)
{
	uint64_t at = 0;
	int result = 0;

	forget(arena); /* a copy that fails has overwritten some */
	for (size_t i = 0; i < arena->count && !result; i++) {
		struct gdrpy_arena_block *block = &arena->blocks[i];

		result = arena->memory.to_host(host + at, block->start, arena_size(*block));
		block->kept = at;
		at += arena_size(*block);
	}
	if (result)
		forget(arena);
	return result;
}

static int fall_asleep(struct arena *arena, bool wanted, char *host, uint64_t room, bool unchanged)
{
	int result = 0;

	if (!wanted)
		forget(arena);
	else if (arena->used > room)
		return -ENOSPC;
	else if (!unchanged || !all_kept(arena))
		result = keep(arena, host);
	if (result)
		return result;
	take_back(arena, arena->count);
	arena->sleeping = true;
	return 0;
}

static int restore(const struct arena *arena, const struct gdrpy_arena_block *block,
		   const char *host)
{
	int result = gdrpy_arena_back(arena, block);

	if (result || block->kept == GDRPY_ARENA_NOT_KEPT)
		return result;
	result = arena->memory.from_host(block->start, host + block->kept, arena_size(*block));
	if (result)
		arena->memory.unmap(block->start, arena_size(*block));
	return result;
}

static int wake_up(struct arena *arena, const char *host)
{
	for (size_t i = 0; i < arena->count; i++) {
		int result = restore(arena, &arena->blocks[i], host);

		if (result) {
			take_back(arena, i);
			return result;
		}
	}
	arena->sleeping = false;
	return 0;
}

/* The arena of a slot, locked, with its context current; NULL if there is none. */
static struct arena *begin(int slot)
{
	struct arena *arena = gdrpy_arena_enter(slot);

	if (arena && arena->memory.create && !arena->driver.push(arena->driver.context))
		return arena;
	gdrpy_arena_leave(arena);
	return NULL;
}

static void end(struct arena *arena)
{
	void *context;

	arena->driver.pop(&context);
	gdrpy_arena_leave(arena);
}

int gdrpy_arena_sleep(int slot, bool keep, void *host, uint64_t room, bool unchanged)
{
	struct arena *arena = begin(slot);
	int result;

	if (!arena)
		return -EINVAL;
	result = arena->sleeping ? 0 : fall_asleep(arena, keep, host, room, unchanged);
	end(arena);
	return result;
}

int gdrpy_arena_wake(int slot, const void *host)
{
	struct arena *arena = begin(slot);
	int result;

	if (!arena)
		return -EINVAL;
	result = arena->sleeping ? wake_up(arena, host) : 0;
	end(arena);
	return result;
}
