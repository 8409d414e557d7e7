/* SPDX-License-Identifier: MIT */
/*
 * Random calls by several threads at once, on the same handles: none may crash or lose anything.
 *
 *	fuzz_threads SEED CALLS
 */
#include <pthread.h>
#include <stdatomic.h>

#include "random.h"

enum {
	PINS = 12, /* that are known at a time, live and stale */
	LIBRARIES = 2,
	THREADS = 8
};

static CUdeviceptr memory;

/*
 * What all threads know. None copies through these: a copy must not lose its mapping meanwhile, as
 * no other use of a mapping must.
 */
static struct {
	gdr_t libraries[LIBRARIES];
	_Atomic unsigned long handles[PINS];
	_Atomic(void *) mapped[PINS];
	int calls;
} all;

static void check_answer(int error)
{
	if (error != 0 && error != EAGAIN)
		CHECK_EQ(error, EINVAL);
}

static void copy_through_own(uint64_t *random, gdr_t gdr)
{
	unsigned char sent[3000], seen[3000];
	struct view own = viewed(gdr, memory + below(random, MEMORY / 2), sizeof(sent));

	memset(sent, (int)below(random, 256), sizeof(sent));
	CHECK_EQ(gdr_copy_to_mapping(own.handle, own.bytes, sent, sizeof(sent)), 0);
	CHECK_EQ(gdr_copy_from_mapping(own.handle, seen, own.bytes, sizeof(seen)), 0);
	close_view(&own);
}

static void *call_at_random(void *seed)
{
	uint64_t random = (uintptr_t)seed;

	for (int i = 0; i < all.calls; i++) {
		gdr_t gdr = all.libraries[below(&random, LIBRARIES)];
		size_t which = below(&random, PINS);
		gdr_mh_t handle = {atomic_load(&all.handles[which])};
		gdr_info_v2_t info;
		void *va;

		switch (below(&random, 7)) {
		case 0:
			check_answer(gdr_pin_buffer(gdr, memory + odd_number(&random) % MEMORY,
						    1 + below(&random, 1000), 0, 0, &handle));
			atomic_store(&all.handles[which], handle.h);
			break;
		case 1:
			if (!gdr_map(gdr, handle, &va, 1 + below(&random, GPU_PAGE)))
				atomic_store(&all.mapped[which], va);
			break;
		case 2:
			va = atomic_load(&all.mapped[which]);
			check_answer(gdr_unmap(gdr, handle, va, GPU_PAGE));
			break;
		case 3:
			check_answer(gdr_unpin_buffer(gdr, handle));
			break;
		case 4:
			check_answer(gdr_get_info_v2(gdr, handle, &info));
			break;
		case 5:
			handle.h ^= next_random(&random) << 32;
			check_answer(gdr_get_info_v2(gdr, handle, &info));
			break;
		case 6:
			copy_through_own(&random, gdr);
		}
	}
	return NULL;
}

static void several_threads(uint64_t seed, int calls)
{
	pthread_t threads[THREADS];

	memory = allocate(MEMORY);
	all.calls = calls / THREADS;
	for (int i = 0; i < LIBRARIES; i++)
		all.libraries[i] = opened();
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, call_at_random,
					(void *)(uintptr_t)(seed + (uint64_t)i + 1)),
			 0);
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
	for (int i = 0; i < LIBRARIES; i++)
		CHECK_EQ(gdr_close(all.libraries[i]), 0);
	OK(cuMemFree_v2(memory));
}

int main(int argc, char **argv)
{
	return fuzz(argc, argv, several_threads, "made");
}
