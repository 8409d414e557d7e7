/* SPDX-License-Identifier: MIT */
#include "arena/private.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct arena arenas[GDRPY_ARENA_SLOTS];

/*
 * A lock for every fourth slot. It is held for microseconds, except while blocks get memory, sleep
 * or wake. A fork takes all of them: its child must find every arena consistent.
 */
#define LOCKS (GDRPY_ARENA_SLOTS / 4)

static pthread_mutex_t locks[LOCKS] = {
	[0 ... LOCKS - 1] = PTHREAD_MUTEX_INITIALIZER,
};

static pthread_mutex_t *lock_of(int slot)
{
	return &locks[slot % LOCKS];
}

/* Held by one who opens an arena, before the others. */
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static void lock_all(void)
{
	pthread_mutex_lock(&opening);
	for (int i = 0; i < LOCKS; i++)
		pthread_mutex_lock(&locks[i]);
}

static void unlock_all(void)
{
	for (int i = 0; i < LOCKS; i++)
		pthread_mutex_unlock(&locks[i]);
	pthread_mutex_unlock(&opening);
}

static void __attribute__((constructor)) watch_forks(void)
{
	pthread_atfork(lock_all, unlock_all, unlock_all);
}

struct arena *gdrpy_arena_enter(int slot)
{
	if (slot < 0 || slot >= GDRPY_ARENA_SLOTS)
		return NULL;
	pthread_mutex_lock(lock_of(slot));
	if (arenas[slot].open)
		return &arenas[slot];
	pthread_mutex_unlock(lock_of(slot));
	return NULL;
}

void gdrpy_arena_leave(struct arena *arena)
{
	if (arena)
		pthread_mutex_unlock(lock_of((int)(arena - arenas)));
}

static uint64_t align_up(uint64_t value, uint64_t unit)
{
	return (value + unit - 1) / unit * unit;
}

/* The slot for an arena of these addresses, or why there is none; called by one who opens it. */
static int choose(uint64_t start, uint64_t end)
{
	int chosen = -EMFILE;

	for (int slot = GDRPY_ARENA_SLOTS - 1; slot >= 0; slot--) {
		struct arena *arena = gdrpy_arena_enter(slot);
		bool overlaps = arena && start < arena->end && arena->start < end;

		gdrpy_arena_leave(arena);
		if (overlaps)
			return -EEXIST;
		if (!arena)
			chosen = slot;
	}
	return chosen;
}

int gdrpy_arena_open(uint64_t start, uint64_t nbytes, int device,
		     const struct gdrpy_arena_driver *driver,
		     const struct gdrpy_arena_memory *memory)
{
	uint64_t unit = memory ? memory->unit : GDRPY_ARENA_ALIGNMENT;
	struct arena arena = {
		.open = true,
		.device = device,
		.unit = unit,
		.driver = driver ? *driver : (struct gdrpy_arena_driver){0},
		.memory = memory ? *memory : (struct gdrpy_arena_memory){0},
		.start = align_up(start, unit),
		.end = start + nbytes,
	};
	int slot;

	pthread_mutex_lock(&opening);
	slot = choose(arena.start, arena.end);
	if (slot >= 0) {
		pthread_mutex_lock(lock_of(slot));
		arenas[slot] = arena;
		pthread_mutex_unlock(lock_of(slot));
	}
	pthread_mutex_unlock(&opening);
	return slot;
}

int gdrpy_arena_close(int slot)
{
	struct arena *arena = gdrpy_arena_enter(slot);
	int ret = -EBUSY;

	if (!arena) {
		ret = -EINVAL;
	} else if (!arena->count) {
		free(arena->blocks);
		*arena = (struct arena){0};
		ret = 0;
	}
	gdrpy_arena_leave(arena);
	return ret;
}

/* The free piece before block `index`, or after the last one. */
static struct gdrpy_arena_block gap(const struct arena *arena, size_t index)
{
	return (struct gdrpy_arena_block){
		.start = index ? arena->blocks[index - 1].end : arena->start,
		.end = index < arena->count ? arena->blocks[index].start : arena->end,
	};
}

static bool make_room(struct arena *arena)
{
	size_t room = arena->room ? 2 * arena->room : 16;
	struct gdrpy_arena_block *blocks;

	if (arena->count < arena->room)
		return true;
	blocks = realloc(arena->blocks, room * sizeof(*blocks));
	if (!blocks)
		return false;
	arena->blocks = blocks;
	arena->room = room;
	return true;
}

static void drop(struct arena *arena, size_t index)
{
	arena->used -= arena_size(arena->blocks[index]);
	arena->count--;
	memmove(&arena->blocks[index], &arena->blocks[index + 1],
		(arena->count - index) * sizeof(*arena->blocks));
}

static uint64_t carve(struct arena *arena, uint64_t nbytes)
{
	size_t index = 0;
	uint64_t start;

	/* Rounding up a size larger than the arena could overflow. */
	if (arena->sleeping ||
	    nbytes > arena_size((struct gdrpy_arena_block){.start = arena->start,
							   .end = arena->end}) ||
	    !make_room(arena))
		return 0;
	nbytes = nbytes ? align_up(nbytes, arena->unit) : arena->unit;
	while (index <= arena->count && arena_size(gap(arena, index)) < nbytes)
		index++;
	if (index > arena->count)
		return 0;

	start = gap(arena, index).start;
	memmove(&arena->blocks[index + 1], &arena->blocks[index],
		(arena->count - index) * sizeof(*arena->blocks));
	arena->blocks[index] =
		(struct gdrpy_arena_block){start, start + nbytes, GDRPY_ARENA_NOT_KEPT};
	arena->count++;
	arena->used += nbytes;
	if (arena->memory.create && gdrpy_arena_back(arena, &arena->blocks[index])) {
		drop(arena, index);
		return 0;
	}
	return start;
}

uint64_t gdrpy_arena_allocate(int slot, uint64_t nbytes)
{
	struct arena *arena = gdrpy_arena_enter(slot);
	uint64_t start = 0;

	if (arena)
		start = carve(arena, nbytes);
	gdrpy_arena_leave(arena);
	return start;
}

static int compare(const void *one, const void *two)
{
	uint64_t a = ((const struct gdrpy_arena_block *)one)->start,
		 b = ((const struct gdrpy_arena_block *)two)->start;

	return a < b ? -1 : a > b;
}

static int give_back(struct arena *arena, uint64_t address)
{
	struct gdrpy_arena_block wanted = {.start = address};
	struct gdrpy_arena_block *block;

	if (!arena->count)
		return -EINVAL;
	block = bsearch(&wanted, arena->blocks, arena->count, sizeof(wanted), compare);
	if (!block)
		return -EINVAL;
	if (arena->memory.unmap && !arena->sleeping)
		arena->memory.unmap(block->start, arena_size(*block));
	drop(arena, (size_t)(block - arena->blocks));
	return 0;
}

int gdrpy_arena_free(int slot, uint64_t address)
{
	struct arena *arena = gdrpy_arena_enter(slot);
	int ret = -EINVAL;

	if (arena)
		ret = give_back(arena, address);
	gdrpy_arena_leave(arena);
	return ret;
}

uint64_t gdrpy_arena_blocks(int slot, struct gdrpy_arena_block *blocks, uint64_t room)
{
	struct arena *arena = gdrpy_arena_enter(slot);
	uint64_t count = 0;

	if (arena)
		count = arena->count < room ? arena->count : room;
	if (count)
		memcpy(blocks, arena->blocks, count * sizeof(*blocks));
	gdrpy_arena_leave(arena);
	return count;
}

void gdrpy_arena_usage(int slot, struct gdrpy_arena_usage *usage)
{
	struct arena *arena;

	*usage = (struct gdrpy_arena_usage){0};
	arena = gdrpy_arena_enter(slot);
	if (arena) {
		usage->used = arena->used;
		usage->blocks = arena->count;
		usage->sleeping = arena->sleeping;
		for (size_t i = 0; i <= arena->count; i++)
			if (arena_size(gap(arena, i)) > usage->largest)
				usage->largest = arena_size(gap(arena, i));
	}
	gdrpy_arena_leave(arena);
}

void *gdrpy_arena_allocate_for(int slot, int64_t nbytes, int device)
{
	struct arena *arena = gdrpy_arena_enter(slot);
	uint64_t start = 0;

	if (arena && arena->device == device && nbytes >= 0)
		start = carve(arena, (uint64_t)nbytes);
	gdrpy_arena_leave(arena);
	return (void *)(uintptr_t)start;
}

static void wait_for(const struct gdrpy_arena_driver *driver, void *stream)
{
	void *context;

	/* The driver is shutting down, and its streams with it. */
	if (driver->push(driver->context))
		return;
	driver->wait(stream);
	driver->pop(&context);
}

/*
 * Wait for the stream first: another one may use the next block there. cudaFree would wait for the
 * whole device, which a resident kernel keeps busy forever.
 */
void gdrpy_arena_free_for(int slot, void *block, void *stream)
{
	struct gdrpy_arena_driver driver = {0};
	struct arena *arena;

	if (!block)
		return;
	arena = gdrpy_arena_enter(slot);
	if (arena)
		driver = arena->driver;
	gdrpy_arena_leave(arena);
	if (driver.wait)
		wait_for(&driver, stream);
	if (gdrpy_arena_free(slot, (uint64_t)(uintptr_t)block))
		fprintf(stderr, "gdrpy: arena %d cannot free %p, which is not one of its blocks\n",
			slot, block);
}
