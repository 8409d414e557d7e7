/* SPDX-License-Identifier: MIT */
/* Blocks of address ranges that are not mapped: an arena never touches them. */
#include "arena/arena.h"
#include "check.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/types.h>
#include <sys/wait.h>

#define START 0x700000000000ull
#define UNIT GDRPY_ARENA_ALIGNMENT

void *gdrpy_arena_alloc_0(ssize_t nbytes, int device, void *stream);
void gdrpy_arena_free_0(void *block, ssize_t nbytes, int device, void *stream);
void *gdrpy_arena_alloc_63(ssize_t nbytes, int device, void *stream);

static int new_arena(uint64_t nbytes)
{
	int slot = gdrpy_arena_open(START, nbytes, 0, NULL, NULL);

	CHECK_EQ(slot, 0);
	return slot;
}

static void check_usage(uint64_t used, uint64_t blocks, uint64_t largest)
{
	struct gdrpy_arena_usage usage;

	gdrpy_arena_usage(0, &usage);
	CHECK_EQ(usage.used, used);
	CHECK_EQ(usage.blocks, blocks);
	CHECK_EQ(usage.largest, largest);
}

static void blocks_follow_each_other_aligned(void)
{
	int slot = new_arena(10 * UNIT);

	CHECK_EQ(gdrpy_arena_allocate(slot, 1), START);
	CHECK_EQ(gdrpy_arena_allocate(slot, UNIT + 1), START + UNIT);
	CHECK_EQ(gdrpy_arena_allocate(slot, 0), START + 3 * UNIT);
	check_usage(4 * UNIT, 3, 6 * UNIT);
	CHECK_EQ(gdrpy_arena_free(slot, START), 0);
	CHECK_EQ(gdrpy_arena_free(slot, START + UNIT), 0);
	CHECK_EQ(gdrpy_arena_free(slot, START + 3 * UNIT), 0);
	check_usage(0, 0, 10 * UNIT);
	CHECK_EQ(gdrpy_arena_close(slot), 0);
}

static void blocks_are_told_by_address_as_far_as_there_is_room(void)
{
	int slot = new_arena(10 * UNIT);
	struct gdrpy_arena_block blocks[3] = {{0}};
	uint64_t first = gdrpy_arena_allocate(slot, UNIT);
	uint64_t second = gdrpy_arena_allocate(slot, 2 * UNIT);

	gdrpy_arena_free(slot, first);
	CHECK_EQ(gdrpy_arena_allocate(slot, 1), first);
	CHECK_EQ(gdrpy_arena_blocks(slot, blocks, 3), 2);
	CHECK_EQ(blocks[0].start, first);
	CHECK_EQ(blocks[0].end, first + UNIT);
	CHECK_EQ(blocks[1].start, second);
	CHECK_EQ(blocks[1].end, second + 2 * UNIT);
	CHECK_EQ(blocks[2].end, 0);
	blocks[1].end = 0;
	CHECK_EQ(gdrpy_arena_blocks(slot, blocks, 1), 1);
	CHECK_EQ(blocks[1].end, 0);
	CHECK_EQ(gdrpy_arena_blocks(slot, NULL, 0), 0);
	gdrpy_arena_free(slot, first);
	gdrpy_arena_free(slot, second);
	CHECK_EQ(gdrpy_arena_blocks(slot, blocks, 3), 0);
	CHECK_EQ(gdrpy_arena_close(slot), 0);
	CHECK_EQ(gdrpy_arena_blocks(slot, blocks, 3), 0);
}

static void first_piece_that_is_large_enough_is_taken(void)
{
	int slot = new_arena(10 * UNIT);
	uint64_t block[4];

	for (int i = 0; i < 4; i++)
		block[i] = gdrpy_arena_allocate(slot, (i == 0 ? 1 : 2) * UNIT);
	gdrpy_arena_free(slot, block[0]);
	gdrpy_arena_free(slot, block[2]);
	check_usage(4 * UNIT, 2, 3 * UNIT);
	CHECK_EQ(gdrpy_arena_allocate(slot, 2 * UNIT), block[2]);
	CHECK_EQ(gdrpy_arena_allocate(slot, 3 * UNIT), START + 7 * UNIT);
	CHECK_EQ(gdrpy_arena_allocate(slot, UNIT), block[0]);
	CHECK_EQ(gdrpy_arena_allocate(slot, 1), 0);
	check_usage(10 * UNIT, 5, 0);
	for (int i = 0; i < 4; i++)
		CHECK_EQ(gdrpy_arena_free(slot, block[i]), 0);
	CHECK_EQ(gdrpy_arena_free(slot, START + 7 * UNIT), 0);
	CHECK_EQ(gdrpy_arena_close(slot), 0);
}

static void free_neighbours_are_one_piece(void)
{
	int slot = new_arena(3 * UNIT);
	uint64_t block[3];
	const int order[][3] = {{0, 1, 2}, {2, 1, 0}, {0, 2, 1}, {1, 0, 2}};

	for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
		for (int j = 0; j < 3; j++)
			block[j] = gdrpy_arena_allocate(slot, UNIT);
		for (int j = 0; j < 3; j++)
			CHECK_EQ(gdrpy_arena_free(slot, block[order[i][j]]), 0);
		CHECK_EQ(gdrpy_arena_allocate(slot, 3 * UNIT), START);
		CHECK_EQ(gdrpy_arena_free(slot, START), 0);
	}
	CHECK_EQ(gdrpy_arena_close(slot), 0);
}

static void too_much_is_refused_and_changes_nothing(void)
{
	int slot = new_arena(2 * UNIT);

	CHECK_EQ(gdrpy_arena_allocate(slot, 2 * UNIT + 1), 0);
	CHECK_EQ(gdrpy_arena_allocate(slot, UINT64_MAX), 0);
	CHECK_EQ(gdrpy_arena_allocate(slot, UINT64_MAX - UNIT), 0);
	check_usage(0, 0, 2 * UNIT);
	CHECK_EQ(gdrpy_arena_allocate(slot, 2 * UNIT), START);
	CHECK_EQ(gdrpy_arena_free(slot, START), 0);
	CHECK_EQ(gdrpy_arena_close(slot), 0);
}

static void what_lies_before_and_behind_whole_units_is_left_out(void)
{
	int slot = gdrpy_arena_open(START + 1, 2 * UNIT, 0, NULL, NULL);

	check_usage(0, 0, UNIT + 1);
	CHECK_EQ(gdrpy_arena_allocate(slot, UNIT), START + UNIT);
	check_usage(UNIT, 1, 1);
	CHECK_EQ(gdrpy_arena_allocate(slot, 1), 0);
	CHECK_EQ(gdrpy_arena_free(slot, START + UNIT), 0);
	CHECK_EQ(gdrpy_arena_close(slot), 0);

	slot = gdrpy_arena_open(START + 1, 5, 0, NULL, NULL);
	CHECK_EQ(gdrpy_arena_allocate(slot, 1), 0);
	CHECK_EQ(gdrpy_arena_allocate(slot, UINT64_MAX), 0);
	check_usage(0, 0, 0);
	CHECK_EQ(gdrpy_arena_close(slot), 0);
}

static void what_is_no_block_is_not_freed(void)
{
	int slot = new_arena(4 * UNIT);
	uint64_t block = gdrpy_arena_allocate(slot, 2 * UNIT);

	CHECK_EQ(gdrpy_arena_free(slot, block + UNIT), -EINVAL);
	CHECK_EQ(gdrpy_arena_free(slot, block + 2 * UNIT), -EINVAL);
	CHECK_EQ(gdrpy_arena_free(slot, 0), -EINVAL);
	CHECK_EQ(gdrpy_arena_free(slot + 1, block), -EINVAL);
	CHECK_EQ(gdrpy_arena_free(slot, block), 0);
	CHECK_EQ(gdrpy_arena_free(slot, block), -EINVAL);
	CHECK_EQ(gdrpy_arena_close(slot), 0);
}

static void arena_with_blocks_stays_open(void)
{
	int slot = new_arena(4 * UNIT);
	uint64_t block = gdrpy_arena_allocate(slot, 1);

	CHECK_EQ(gdrpy_arena_close(slot), -EBUSY);
	CHECK_EQ(gdrpy_arena_free(slot, block), 0);
	CHECK_EQ(gdrpy_arena_close(slot), 0);
	CHECK_EQ(gdrpy_arena_close(slot), -EINVAL);
	CHECK_EQ(gdrpy_arena_close(-1), -EINVAL);
	CHECK_EQ(gdrpy_arena_close(GDRPY_ARENA_SLOTS), -EINVAL);
	CHECK_EQ(gdrpy_arena_allocate(slot, 1), 0);
	check_usage(0, 0, 0);
}

static void slots_run_out_and_are_used_again(void)
{
	for (int i = 0; i < GDRPY_ARENA_SLOTS; i++)
		CHECK_EQ(gdrpy_arena_open(START + (uint64_t)i * UNIT, UNIT, i, NULL, NULL), i);
	CHECK_EQ(gdrpy_arena_open(START + 64 * UNIT, UNIT, 0, NULL, NULL), -EMFILE);
	CHECK_EQ(gdrpy_arena_open(START + 63 * UNIT, 2 * UNIT, 0, NULL, NULL), -EEXIST);
	CHECK_EQ((uintptr_t)gdrpy_arena_alloc_63(1, 63, NULL), START + 63 * UNIT);
	CHECK_EQ(gdrpy_arena_free(63, START + 63 * UNIT), 0);
	CHECK_EQ(gdrpy_arena_close(17), 0);
	CHECK_EQ(gdrpy_arena_open(START + 17 * UNIT, UNIT, 0, NULL, NULL), 17);
	for (int i = 0; i < GDRPY_ARENA_SLOTS; i++)
		CHECK_EQ(gdrpy_arena_close(i), 0);
}

static void *current, *waited_for, *current_while_waiting;
static uint64_t used_while_waiting;

static int note_push(void *context)
{
	current = context;
	return 0;
}

static int note_pop(void **context)
{
	*context = current;
	current = NULL;
	return 0;
}

static int note_wait(void *stream)
{
	struct gdrpy_arena_usage usage;

	gdrpy_arena_usage(0, &usage);
	used_while_waiting = usage.used;
	waited_for = stream;
	current_while_waiting = current;
	return 0;
}

static void library_that_frees_a_block_has_its_stream_waited_for_first(void)
{
	int context, stream;
	const struct gdrpy_arena_driver driver = {&context, note_push, note_wait, note_pop};
	int slot = gdrpy_arena_open(START, 4 * UNIT, 2, &driver, NULL);
	void *block = gdrpy_arena_alloc_0(UNIT, 2, &stream);

	CHECK_EQ((uintptr_t)block, START);
	CHECK(!waited_for);
	gdrpy_arena_free_0(block, UNIT, 2, &stream);
	CHECK(waited_for == &stream);
	CHECK(current_while_waiting == &context);
	CHECK(!current);
	CHECK_EQ(used_while_waiting, UNIT);
	check_usage(0, 0, 4 * UNIT);
	CHECK_EQ(gdrpy_arena_close(slot), 0);
}

static void library_gets_nothing_for_another_device_or_too_much(void)
{
	int slot = gdrpy_arena_open(START, 4 * UNIT, 2, NULL, NULL);

	CHECK(!gdrpy_arena_alloc_0(1, 0, NULL));
	CHECK(!gdrpy_arena_alloc_0(-1, 2, NULL));
	CHECK(!gdrpy_arena_alloc_0(4 * UNIT + 1, 2, NULL));
	CHECK(!gdrpy_arena_alloc_63(1, 2, NULL));
	gdrpy_arena_free_0(NULL, 0, 2, NULL);
	CHECK_EQ(gdrpy_arena_close(slot), 0);
}

#define THREADS 4
#define ROUNDS 2000
#define HELD 8

/* Who owns a unit: two threads that had one at once would be found out. */
static int owners[THREADS * HELD * 3];

static void mark(uint64_t block, uint64_t units, int from, int to)
{
	for (uint64_t i = 0; i < units; i++) {
		int *owner = &owners[(block - START) / UNIT + i];

		CHECK(__atomic_compare_exchange_n(owner, &from, to, false, __ATOMIC_SEQ_CST,
						  __ATOMIC_SEQ_CST));
	}
}

static void *churn(void *number)
{
	unsigned int seed = (unsigned int)(uintptr_t)number;
	uint64_t block[HELD] = {0}, units[HELD] = {0};
	int me = (int)(uintptr_t)number;

	for (int round = 0; round < ROUNDS; round++) {
		int i = rand_r(&seed) % HELD;

		if (block[i]) {
			mark(block[i], units[i], me, 0);
			CHECK_EQ(gdrpy_arena_free(0, block[i]), 0);
			block[i] = 0;
		} else {
			units[i] = (uint64_t)(rand_r(&seed) % 3 + 1);
			block[i] = gdrpy_arena_allocate(0, units[i] * UNIT);
			if (block[i])
				mark(block[i], units[i], 0, me);
		}
	}
	for (int i = 0; i < HELD; i++)
		if (block[i]) {
			mark(block[i], units[i], me, 0);
			CHECK_EQ(gdrpy_arena_free(0, block[i]), 0);
		}
	return NULL;
}

static void threads_never_get_the_same_memory(void)
{
	int slot = new_arena(sizeof(owners) / sizeof(owners[0]) * UNIT);
	pthread_t threads[THREADS];

	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, churn, (void *)(i + 1)), 0);
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
	check_usage(0, 0, sizeof(owners) / sizeof(owners[0]) * UNIT);
	CHECK_EQ(gdrpy_arena_close(slot), 0);
}

static void child_of_a_busy_process_finds_the_arena_whole(void)
{
	int status, slot = new_arena(sizeof(owners) / sizeof(owners[0]) * UNIT);
	pthread_t thread;

	CHECK_EQ(pthread_create(&thread, NULL, churn, (void *)1), 0);
	for (int i = 0; i < 20; i++) {
		pid_t child = fork();

		if (!child) {
			uint64_t block = gdrpy_arena_allocate(slot, 1);

			/* An exit would look to the thread sanitizer like a thread left behind. */
			if (block && !gdrpy_arena_free(slot, block))
				raise(SIGKILL);
			_exit(1);
		}
		CHECK(waitpid(child, &status, 0) == child);
		CHECK_EQ(status, SIGKILL);
	}
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(gdrpy_arena_close(slot), 0);
}

CHECK_MAIN(TEST(blocks_follow_each_other_aligned),
	   TEST(blocks_are_told_by_address_as_far_as_there_is_room),
	   TEST(first_piece_that_is_large_enough_is_taken), TEST(free_neighbours_are_one_piece),
	   TEST(too_much_is_refused_and_changes_nothing),
	   TEST(what_lies_before_and_behind_whole_units_is_left_out),
	   TEST(what_is_no_block_is_not_freed), TEST(arena_with_blocks_stays_open),
	   TEST(slots_run_out_and_are_used_again),
	   TEST(library_that_frees_a_block_has_its_stream_waited_for_first),
	   TEST(library_gets_nothing_for_another_device_or_too_much),
	   TEST(threads_never_get_the_same_memory),
	   TEST(child_of_a_busy_process_finds_the_arena_whole))
