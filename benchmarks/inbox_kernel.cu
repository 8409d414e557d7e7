/* SPDX-License-Identifier: MIT */
/*
 * Pushes records into an inbox, from every thread. Words 0 and 1 of a record are its thread and its
 * index among those of the thread; word i of the others is ((thread << 40 | index) * 8 + i) * ODD
 * modulo 2**64, so no two are the same. For NVRTC, with -I of gdrpy.channel.include_dir().
 */
#include <gdrpy/channel.cuh>

#define ODD 0x9E3779B97F4A7C15ull

struct record {
	unsigned long long word[8];
};

static __device__ record made(unsigned long long index)
{
	record record = {{threadIdx.x, index}};

	for (int i = 2; i < 8; i++)
		record.word[i] = (((unsigned long long)threadIdx.x << 40 | index) * 8 + i) * ODD;
	return record;
}

/*
 * One block of any number of threads. Each first stores the index in its word of `messages`, host
 * memory that the push must make visible with the record.
 */
extern "C" __global__ void push(const gdr_inbox *inbox, unsigned long long *messages,
				unsigned long long first, unsigned long long each)
{
	gdrpy::InboxWriter writer(inbox);

	for (unsigned long long index = first; index < first + each; index++) {
		messages[threadIdx.x] = index;
		if (!writer.push(made(index)))
			return;
	}
}

/* The same without messages. */
extern "C" __global__ void push_relaxed(const gdr_inbox *inbox, unsigned long long *,
					unsigned long long first, unsigned long long each)
{
	gdrpy::InboxWriter writer(inbox);

	for (unsigned long long index = first; index < first + each; index++)
		if (!writer.push_relaxed(made(index)))
			return;
}
