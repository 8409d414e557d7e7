/* SPDX-License-Identifier: MIT */
/* Sixteen threads make the very first calls of a process at once: what is made once is made once.
 */
#include <pthread.h>

#include "rig.h"

#define THREADS 16

static pthread_barrier_t all_ready;
static CUdeviceptr pointers[THREADS];

static void *use_it_first(void *argument)
{
	int number = *(int *)argument;
	CUdeviceptr pointer = pointers[number];
	unsigned char sent[100];
	struct view view;
	gdr_t gdr;

	memset(sent, 'a' + number, sizeof(sent));
	pthread_barrier_wait(&all_ready);
	gdr = opened();
	view = viewed(gdr, pointer, sizeof(sent));
	CHECK_EQ(gdr_copy_to_mapping(view.handle, view.bytes, sent, sizeof(sent)), 0);
	close_view(&view);
	CHECK_EQ(gdr_close(gdr), 0);
	return NULL;
}

/* Every other one pins memory of cuMemCreate. */
static void threads_that_come_first_all_succeed(void)
{
	CUmemGenericAllocationHandle memory = create(GRANULE);
	CUdeviceptr exported = map(memory, GRANULE);
	pthread_t threads[THREADS];
	int numbers[THREADS];

	CHECK_EQ(pthread_barrier_init(&all_ready, NULL, THREADS), 0);
	for (int i = 0; i < THREADS; i++) {
		pointers[i] = i % 2 ? exported + (CUdeviceptr)i * 1000 : allocate(1000);
		numbers[i] = i;
		CHECK_EQ(pthread_create(&threads[i], NULL, use_it_first, &numbers[i]), 0);
	}
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
	for (int i = 0; i < THREADS; i++) {
		unsigned char found[100], expected[100];

		memset(expected, 'a' + i, sizeof(expected));
		gpu_read(pointers[i], found, sizeof(found));
		CHECK_MEM_EQ(found, expected, sizeof(found));
	}
	CHECK_EQ(manager_count("clients"), managed());
	CHECK_EQ(manager_count("objects"), 0);
	CHECK_EQ(manager_count("mappings"), 0);
	CHECK_EQ(manager_count("violations"), 0);
}

int main(int argc, char **argv)
{
	static const struct check_test tests[] = {TEST(threads_that_come_first_all_succeed)};

	start();
	return check_run(argc, argv, tests, 1);
}
