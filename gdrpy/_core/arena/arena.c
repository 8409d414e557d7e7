/* SPDX-License-Identifier: MIT */
#include "arena.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Blocks are sorted by address. Bytes outside of them are free. */
struct arena {
	bool open;
	int device;
	struct gdrpy_arena_driver driver;
	uint64_t start, end;
	struct gdrpy_arena_block *blocks;
	size_t count, room;
	uint64_t used;
};

/* One lock for all: it is held for microseconds, and a fork must find every arena consistent. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct arena arenas[GDRPY_ARENA_SLOTS];

static void lock_all(void)
{
	pthread_mutex_lock(&lock);
}

static void unlock_all(void)
{
	pthread_mutex_unlock(&lock);
}

static void __attribute__((constructor)) watch_forks(void)
{
	pthread_atfork(lock_all, unlock_all, unlock_all);
}

static uint64_t align_up(uint64_t value)
{
	return (value + GDRPY_ARENA_ALIGNMENT - 1) / GDRPY_ARENA_ALIGNMENT * GDRPY_ARENA_ALIGNMENT;
}

/* The open arena of a slot, else NULL; called with the lock held. */
static struct arena *find(int slot)
{
	return slot >= 0 && slot < GDRPY_ARENA_SLOTS && arenas[slot].open ? &arenas[slot] : NULL;
}

int gdrpy_arena_open(uint64_t start, uint64_t nbytes, int device,
		     const struct gdrpy_arena_driver *driver)
{
	int slot = 0;

	lock_all();
	while (slot < GDRPY_ARENA_SLOTS && arenas[slot].open)
		slot++;
	if (slot < GDRPY_ARENA_SLOTS)
		arenas[slot] = (struct arena){
			.open = true,
			.device = device,
			.driver = driver ? *driver : (struct gdrpy_arena_driver){0},
			.start = align_up(start),
			.end = start + nbytes,
		};
	unlock_all();
	return slot < GDRPY_ARENA_SLOTS ? slot : -EMFILE;
}

int gdrpy_arena_close(int slot)
{
	struct arena *arena;
	int ret = -EBUSY;

	lock_all();
	arena = find(slot);
	if (!arena) {
		ret = -EINVAL;
	} else if (!arena->count) {
		free(arena->blocks);
		*arena = (struct arena){0};
		ret = 0;
	}
	unlock_all();
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

/* Rounding the start up may move it past the end. */
static uint64_t size_of(struct gdrpy_arena_block piece)
{
	return piece.end > piece.start ? piece.end - piece.start : 0;
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

static uint64_t carve(struct arena *arena, uint64_t nbytes)
{
	size_t index = 0;
	uint64_t start;

	/* Rounding up a size larger than the arena could overflow. */
	if (nbytes > size_of((struct gdrpy_arena_block){arena->start, arena->end}) ||
	    !make_room(arena))
		return 0;
	nbytes = nbytes ? align_up(nbytes) : GDRPY_ARENA_ALIGNMENT;
	while (index <= arena->count && size_of(gap(arena, index)) < nbytes)
		index++;
	if (index > arena->count)
		return 0;

	start = gap(arena, index).start;
	memmove(&arena->blocks[index + 1], &arena->blocks[index],
		(arena->count - index) * sizeof(*arena->blocks));
	arena->blocks[index] = (struct gdrpy_arena_block){start, start + nbytes};
	arena->count++;
	arena->used += nbytes;
	return start;
}

uint64_t gdrpy_arena_allocate(int slot, uint64_t nbytes)
{
	struct arena *arena;
	uint64_t start = 0;

	lock_all();
	arena = find(slot);
	if (arena)
		start = carve(arena, nbytes);
	unlock_all();
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
	size_t after;

	if (!arena->count)
		return -EINVAL;
	block = bsearch(&wanted, arena->blocks, arena->count, sizeof(wanted), compare);
	if (!block)
		return -EINVAL;
	after = arena->count - (size_t)(block - arena->blocks) - 1;
	arena->used -= size_of(*block);
	arena->count--;
	memmove(block, block + 1, after * sizeof(*block));
	return 0;
}

int gdrpy_arena_free(int slot, uint64_t address)
{
	struct arena *arena;
	int ret = -EINVAL;

	lock_all();
	arena = find(slot);
	if (arena)
		ret = give_back(arena, address);
	unlock_all();
	return ret;
}

uint64_t gdrpy_arena_blocks(int slot, struct gdrpy_arena_block *blocks, uint64_t room)
{
	struct arena *arena;
	uint64_t count = 0;

	lock_all();
	arena = find(slot);
	if (arena)
		count = arena->count < room ? arena->count : room;
	if (count)
		memcpy(blocks, arena->blocks, count * sizeof(*blocks));
	unlock_all();
	return count;
}

void gdrpy_arena_usage(int slot, struct gdrpy_arena_usage *usage)
{
	struct arena *arena;

	*usage = (struct gdrpy_arena_usage){0};
	lock_all();
	arena = find(slot);
	if (arena) {
		usage->used = arena->used;
		usage->blocks = arena->count;
		for (size_t i = 0; i <= arena->count; i++)
			if (size_of(gap(arena, i)) > usage->largest)
				usage->largest = size_of(gap(arena, i));
	}
	unlock_all();
}

void *gdrpy_arena_allocate_for(int slot, int64_t nbytes, int device)
{
	struct arena *arena;
	uint64_t start = 0;

	lock_all();
	arena = find(slot);
	if (arena && arena->device == device && nbytes >= 0)
		start = carve(arena, (uint64_t)nbytes);
	unlock_all();
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
	lock_all();
	arena = find(slot);
	if (arena)
		driver = arena->driver;
	unlock_all();
	if (driver.wait)
		wait_for(&driver, stream);
	if (gdrpy_arena_free(slot, (uint64_t)(uintptr_t)block))
		fprintf(stderr, "gdrpy: arena %d cannot free %p, which is not one of its blocks\n",
			slot, block);
}
