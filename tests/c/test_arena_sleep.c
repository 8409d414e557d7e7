/* SPDX-License-Identifier: MIT */
/* Arenas whose blocks have memory of their own, beside a stand-in of the driver. */
#include "arena/arena.h"
#include "check.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/types.h>

#define UNIT 4096ull
#define UNITS 16
#define SIZE (UNITS * UNIT)
#define OUT_OF_MEMORY 2
#define INVALID_VALUE 1

void *gdrpy_arena_alloc_0(ssize_t nbytes, int device, void *stream);
void gdrpy_arena_free_0(void *block, ssize_t nbytes, int device, void *stream);

/* The range of addresses, and which of its units are mapped, accessible, and backed in all. */
static char range[SIZE] __attribute__((aligned(4096)));
static bool mapped[UNITS], accessible[UNITS];
static uint64_t free_units = UNITS;
static int handles;
/* Calls of each kind before one fails; negative is never. */
static int before_create = -1, before_map = -1, before_access = -1, before_copy = -1;
static char properties, rights;
static int context_of_calls;
static void *current;

static bool fails(int *calls)
{
	return *calls >= 0 && !(*calls)--;
}

static bool fits(uint64_t start, size_t nbytes)
{
	return nbytes && start % UNIT == 0 && nbytes % UNIT == 0 && start >= (uintptr_t)range &&
	       start + nbytes <= (uintptr_t)range + SIZE;
}

static uint64_t first(uint64_t start)
{
	return (start - (uintptr_t)range) / UNIT;
}

static bool all(const bool *units, uint64_t start, size_t nbytes, bool expected)
{
	for (uint64_t i = 0; i < nbytes / UNIT; i++)
		if (units[first(start) + i] != expected)
			return false;
	return true;
}

static void set(bool *units, uint64_t start, size_t nbytes, bool value)
{
	for (uint64_t i = 0; i < nbytes / UNIT; i++)
		units[first(start) + i] = value;
}

static int create(uint64_t *handle, size_t nbytes, const void *given, unsigned long long flags)
{
	CHECK(given == &properties && !flags && nbytes % UNIT == 0);
	if (fails(&before_create) || nbytes / UNIT > free_units)
		return OUT_OF_MEMORY;
	handles++;
	*handle = nbytes;
	return 0;
}

static int release(uint64_t handle)
{
	CHECK(handle);
	handles--;
	return 0;
}

static int map(uint64_t start, size_t nbytes, size_t offset, uint64_t handle,
	       unsigned long long flags)
{
	CHECK(fits(start, nbytes) && !offset && handle == nbytes && !flags);
	CHECK(all(mapped, start, nbytes, false));
	if (fails(&before_map))
		return INVALID_VALUE;
	set(mapped, start, nbytes, true);
	free_units -= nbytes / UNIT;
	memset((void *)(uintptr_t)start, 0xee, nbytes);
	return 0;
}

static int set_access(uint64_t start, size_t nbytes, const void *given, size_t count)
{
	CHECK(given == &rights && count == 1 && all(mapped, start, nbytes, true));
	if (fails(&before_access))
		return INVALID_VALUE;
	set(accessible, start, nbytes, true);
	return 0;
}

static int unmap(uint64_t start, size_t nbytes)
{
	CHECK(fits(start, nbytes) && all(mapped, start, nbytes, true));
	set(mapped, start, nbytes, false);
	set(accessible, start, nbytes, false);
	free_units += nbytes / UNIT;
	return 0;
}

/* Another arena, in which each copy makes and frees a block; 0 is none. */
static int other;

static void use_other(void)
{
	if (other)
		CHECK_EQ(gdrpy_arena_free(other, gdrpy_arena_allocate(other, 1)), 0);
}

static int to_host(void *host, uint64_t start, size_t nbytes)
{
	use_other();
	CHECK(current == &context_of_calls && all(accessible, start, nbytes, true));
	if (fails(&before_copy))
		return INVALID_VALUE;
	memcpy(host, (void *)(uintptr_t)start, nbytes);
	return 0;
}

static int from_host(uint64_t start, const void *host, size_t nbytes)
{
	CHECK(current == &context_of_calls && all(accessible, start, nbytes, true));
	if (fails(&before_copy))
		return INVALID_VALUE;
	memcpy((void *)(uintptr_t)start, host, nbytes);
	return 0;
}

static int push(void *context)
{
	current = context;
	return 0;
}

static int wait_for(void *stream)
{
	(void)stream;
	return 0;
}

static int pop(void **context)
{
	*context = current;
	current = NULL;
	return 0;
}

static int new_arena(void)
{
	const struct gdrpy_arena_driver driver = {&context_of_calls, push, wait_for, pop};
	const struct gdrpy_arena_memory memory = {
		.unit = UNIT,
		.properties = &properties,
		.access = &rights,
		.create = create,
		.release = release,
		.map = map,
		.set_access = set_access,
		.unmap = unmap,
		.to_host = to_host,
		.from_host = from_host,
	};
	int slot = gdrpy_arena_open((uintptr_t)range, SIZE, 0, &driver, &memory);

	CHECK_EQ(slot, 0);
	return slot;
}

static char *allocate(uint64_t nbytes, int content)
{
	char *block = (char *)(uintptr_t)gdrpy_arena_allocate(0, nbytes);

	CHECK(block);
	memset(block, content, nbytes);
	return block;
}

static void check_content(const char *block, uint64_t nbytes, int content)
{
	for (uint64_t i = 0; i < nbytes; i++)
		CHECK_EQ(block[i], (char)content);
}

static void free_block(char *block)
{
	CHECK_EQ(gdrpy_arena_free(0, (uintptr_t)block), 0);
}

static void end_arena(void)
{
	CHECK_EQ(gdrpy_arena_close(0), 0);
	CHECK_EQ(free_units, UNITS);
	CHECK_EQ(handles, 0);
}

static void blocks_have_memory_from_their_beginning_to_their_end(void)
{
	char *block;

	new_arena();
	CHECK_EQ(free_units, UNITS);
	block = allocate(UNIT + 1, 1);
	CHECK_EQ(free_units, UNITS - 2);
	CHECK_EQ(handles, 0);
	free_block(block);
	end_arena();
}

static void block_without_memory_is_not_made(void)
{
	int *const reasons[] = {&before_create, &before_map, &before_access};
	struct gdrpy_arena_usage usage;

	new_arena();
	for (int i = 0; i < 3; i++) {
		*reasons[i] = 0;
		CHECK_EQ(gdrpy_arena_allocate(0, UNIT), 0);
		CHECK_EQ(free_units, UNITS);
		*reasons[i] = -1;
	}
	gdrpy_arena_usage(0, &usage);
	CHECK_EQ(usage.blocks, 0);
	CHECK_EQ(usage.used, 0);
	end_arena();
}

static void sleeper_gives_all_memory_back_and_wakes_with_the_contents(void)
{
	char host[8 * UNIT];
	char *one, *two, *three;

	new_arena();
	one = allocate(2 * UNIT, 1);
	two = allocate(UNIT, 2);
	three = allocate(3 * UNIT, 3);
	free_block(two);
	CHECK_EQ(gdrpy_arena_sleep(0, true, host, sizeof(host), false), 0);
	CHECK_EQ(free_units, UNITS);
	CHECK_EQ(gdrpy_arena_allocate(0, UNIT), 0);
	CHECK_EQ(gdrpy_arena_sleep(0, true, host, sizeof(host), false), 0);
	CHECK_EQ(gdrpy_arena_wake(0, host), 0);
	CHECK_EQ(gdrpy_arena_wake(0, host), 0);
	CHECK_EQ(free_units, UNITS - 5);
	check_content(one, 2 * UNIT, 1);
	check_content(three, 3 * UNIT, 3);
	free_block(one);
	free_block(three);
	end_arena();
}

static void sleeper_lets_blocks_be_freed(void)
{
	char host[4 * UNIT];
	char *one, *two;

	new_arena();
	one = allocate(UNIT, 1);
	two = allocate(UNIT, 2);
	CHECK_EQ(gdrpy_arena_sleep(0, true, host, sizeof(host), false), 0);
	gdrpy_arena_free_0(one, UNIT, 0, NULL);
	CHECK_EQ(gdrpy_arena_wake(0, host), 0);
	CHECK_EQ(free_units, UNITS - 1);
	check_content(two, UNIT, 2);
	free_block(two);
	end_arena();
}

static void sleeper_copies_again_unless_all_blocks_are_unchanged(void)
{
	char host[4 * UNIT];
	char *one, *two;

	new_arena();
	one = allocate(UNIT, 1);
	CHECK_EQ(gdrpy_arena_sleep(0, true, host, sizeof(host), true), 0); /* has no copy yet */
	CHECK_EQ(gdrpy_arena_wake(0, host), 0);
	check_content(one, UNIT, 1);
	before_copy = 0;
	CHECK_EQ(gdrpy_arena_sleep(0, true, host, sizeof(host), true), 0); /* does not copy */
	before_copy = -1;
	CHECK_EQ(gdrpy_arena_wake(0, host), 0);
	two = allocate(UNIT, 2);
	CHECK_EQ(gdrpy_arena_sleep(0, true, host, sizeof(host), true), 0);
	CHECK_EQ(gdrpy_arena_wake(0, host), 0);
	check_content(one, UNIT, 1);
	check_content(two, UNIT, 2);
	memset(one, 4, UNIT);
	CHECK_EQ(gdrpy_arena_sleep(0, true, host, sizeof(host), false), 0);
	CHECK_EQ(gdrpy_arena_wake(0, host), 0);
	check_content(one, UNIT, 4);
	CHECK_EQ(gdrpy_arena_sleep(0, false, NULL, 0, false), 0); /* drops the contents */
	CHECK_EQ(gdrpy_arena_wake(0, NULL), 0);
	check_content(one, UNIT, 0xee);
	free_block(one);
	free_block(two);
	end_arena();
}

static void arena_that_cannot_sleep_stays_awake_with_its_contents(void)
{
	char host[2 * UNIT];
	char *one, *two;

	new_arena();
	one = allocate(UNIT, 1);
	two = allocate(UNIT, 2);
	CHECK_EQ(gdrpy_arena_sleep(0, true, host, UNIT, false), -ENOSPC);
	CHECK_EQ(gdrpy_arena_sleep(0, true, NULL, 0, false), -ENOSPC);
	for (int copies = 0; copies < 2; copies++) {
		before_copy = copies;
		CHECK_EQ(gdrpy_arena_sleep(0, true, host, sizeof(host), false), INVALID_VALUE);
	}
	before_copy = -1;
	CHECK_EQ(free_units, UNITS - 2);
	check_content(one, UNIT, 1);
	CHECK_EQ(gdrpy_arena_sleep(0, true, host, sizeof(host), true),
		 0); /* the copies were no good */
	CHECK_EQ(gdrpy_arena_wake(0, host), 0);
	check_content(one, UNIT, 1);
	check_content(two, UNIT, 2);
	free_block(one);
	free_block(two);
	end_arena();
}

static void arena_that_cannot_wake_sleeps_on_and_loses_nothing(void)
{
	int *const reasons[] = {&before_create, &before_map, &before_access, &before_copy};
	char host[2 * UNIT];
	char *one, *two;

	new_arena();
	one = allocate(UNIT, 1);
	two = allocate(UNIT, 2);
	CHECK_EQ(gdrpy_arena_sleep(0, true, host, sizeof(host), false), 0);
	for (int i = 0; i < 8; i++) {
		*reasons[i / 2] = i % 2;
		CHECK(gdrpy_arena_wake(0, host));
		CHECK_EQ(free_units, UNITS);
		*reasons[i / 2] = -1;
	}
	CHECK_EQ(gdrpy_arena_wake(0, host), 0);
	check_content(one, UNIT, 1);
	check_content(two, UNIT, 2);
	free_block(one);
	free_block(two);
	end_arena();
}

static void arena_over_memory_of_others_neither_sleeps_nor_wakes(void)
{
	CHECK_EQ(gdrpy_arena_open((uintptr_t)range, SIZE, 0, NULL, NULL), 0);
	CHECK_EQ(gdrpy_arena_sleep(0, false, NULL, 0, false), -EINVAL);
	CHECK_EQ(gdrpy_arena_wake(0, NULL), -EINVAL);
	CHECK_EQ(gdrpy_arena_close(0), 0);
	CHECK_EQ(gdrpy_arena_sleep(0, false, NULL, 0, false), -EINVAL);
	CHECK_EQ(gdrpy_arena_wake(64, NULL), -EINVAL);
}

static void sleeper_keeps_no_other_arena_waiting(void)
{
	char host[UNIT];
	char *block;

	new_arena();
	other = gdrpy_arena_open(UNIT, UNIT, 0, NULL, NULL);
	CHECK_EQ(other, 1);
	block = allocate(UNIT, 1);
	CHECK_EQ(gdrpy_arena_sleep(0, true, host, sizeof(host), false), 0);
	CHECK_EQ(gdrpy_arena_wake(0, host), 0);
	free_block(block);
	CHECK_EQ(gdrpy_arena_close(other), 0);
	other = 0;
	end_arena();
}

static void *churn(void *unused)
{
	for (int i = 0; i < 2000; i++) {
		uint64_t block = gdrpy_arena_allocate(0, UNIT);

		if (block)
			CHECK_EQ(gdrpy_arena_free(0, block), 0);
	}
	return unused;
}

static void threads_may_make_blocks_while_the_arena_sleeps_and_wakes(void)
{
	char host[SIZE];
	pthread_t threads[3];
	char *kept;

	new_arena();
	kept = allocate(UNIT, 5);
	for (int i = 0; i < 3; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, churn, NULL), 0);
	for (int i = 0; i < 200; i++) {
		CHECK_EQ(gdrpy_arena_sleep(0, true, host, sizeof(host), false), 0);
		CHECK_EQ(gdrpy_arena_wake(0, host), 0);
	}
	for (int i = 0; i < 3; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
	check_content(kept, UNIT, 5);
	free_block(kept);
	end_arena();
}

CHECK_MAIN(TEST(blocks_have_memory_from_their_beginning_to_their_end),
	   TEST(block_without_memory_is_not_made),
	   TEST(sleeper_gives_all_memory_back_and_wakes_with_the_contents),
	   TEST(sleeper_lets_blocks_be_freed),
	   TEST(sleeper_copies_again_unless_all_blocks_are_unchanged),
	   TEST(arena_that_cannot_sleep_stays_awake_with_its_contents),
	   TEST(arena_that_cannot_wake_sleeps_on_and_loses_nothing),
	   TEST(arena_over_memory_of_others_neither_sleeps_nor_wakes),
	   TEST(sleeper_keeps_no_other_arena_waiting),
	   TEST(threads_may_make_blocks_while_the_arena_sleeps_and_wakes))
