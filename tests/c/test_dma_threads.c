/* SPDX-License-Identifier: MIT */
/* Copies by DMA from many threads, on a driver that counts what is made. */
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>

#include "check.h"
#include "cuda/driver.h"
#include "dma/dma.h"

#define THREADS 4
#define ROUNDS 50

static struct core_dma *opened[ROUNDS]; /* which nothing closes */
static int entered, streams;

static int push_context(void *context)
{
	(void)context;
	__atomic_fetch_add(&entered, 1, __ATOMIC_RELAXED);
	return 0;
}

static int pop_context(void **context)
{
	(void)context;
	return 0;
}

/* Takes until every thread is about to ask for one. */
static int make(void **stream, unsigned int flags)
{
	(void)flags;
	while (__atomic_load_n(&entered, __ATOMIC_RELAXED) % THREADS)
		sched_yield();
	__atomic_fetch_add(&streams, 1, __ATOMIC_RELAXED);
	*stream = malloc(1);
	return 0;
}

static int copy_to_device(uint64_t device, const void *host, size_t nbytes, void *stream)
{
	(void)stream;
	memcpy((void *)(uintptr_t)device, host, nbytes);
	return 0;
}

static int wait_for_stream(void *stream)
{
	CHECK(stream);
	return 0;
}

bool __wrap_core_cuda_find(struct core_cuda *cuda)
{
	*cuda = (struct core_cuda){
		.cuCtxPushCurrent = push_context,
		.cuCtxPopCurrent = pop_context,
		.cuStreamCreate = make,
		.cuStreamSynchronize = wait_for_stream,
		.cuMemcpyHtoDAsync = copy_to_device,
	};
	return true;
}

static void *write_a_word(void *dma)
{
	struct core_error error;
	int from = 7, to = 0;

	CHECK(core_dma_transfer(dma, 0, (uintptr_t)&to, (char *)&from, sizeof(from), true, &error));
	CHECK_EQ(to, 7);
	return NULL;
}

static void first_copies_of_many_threads_make_one_stream(void)
{
	for (int round = 0; round < ROUNDS; round++) {
		pthread_t threads[THREADS];

		opened[round] = core_dma_open(NULL);
		for (int i = 0; i < THREADS; i++)
			pthread_create(&threads[i], NULL, write_a_word, opened[round]);
		for (int i = 0; i < THREADS; i++)
			pthread_join(threads[i], NULL);
		CHECK_EQ(streams, round + 1);
	}
}

CHECK_MAIN(TEST(first_copies_of_many_threads_make_one_stream))
