/* SPDX-License-Identifier: MIT */
/*
 * Pushes records of WORDS words of 64 bits into an inbox, from every thread of a block; word i of a
 * record is (thread << 40 | index) * 64 + i. For NVRTC.
 */
#include <gdrpy/channel.cuh>

#ifndef WORDS
#define WORDS 2
#endif

struct record {
	unsigned long long word[WORDS];
};

extern "C" __global__ void push(const gdr_inbox *inbox, unsigned long long each)
{
	gdrpy::InboxWriter writer(inbox);

	for (unsigned long long index = 0; index < each; index++) {
		unsigned long long first = ((unsigned long long)threadIdx.x << 40 | index) * 64;
		record one;

		for (int i = 0; i < WORDS; i++)
			one.word[i] = first + i;
		if (!writer.push(one))
			return;
	}
}
