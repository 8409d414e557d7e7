/* SPDX-License-Identifier: MIT */
/*
 * The kernels' end of channels, inboxes and links, of one thread, for `gdrpy pplat`. Records have
 * 64 bytes: their round in each word of 64 bits. `make ptx` compiles this to records.ptx, which the
 * driver assembles when it is loaded. A kernel ends after its rounds, or when its ring is closed.
 */
#include <gdrpy/channel.cuh>

#define WORDS 8

struct record {
	unsigned long long word[WORDS];
};

static __device__ bool is_right(const record &one, unsigned long long round)
{
	unsigned long long bits = 0;

	for (int i = 0; i < WORDS; i++)
		bits |= one.word[i] ^ round;
	return !bits;
}

/* Takes records, tells the CPU of each at once, and stores how many were wrong. */
extern "C" __global__ void take(const gdr_channel *channel, const volatile unsigned int *,
				unsigned int *wrong, unsigned int first, unsigned int rounds)
{
	gdrpy::ChannelReader reader(channel);
	unsigned int bad = 0;

	for (unsigned int round = first; round < first + rounds && reader.wait(); round++) {
		record one = reader.load<record>(0);

		reader.release(1);
		bad += !is_right(one, round);
	}
	*wrong = bad;
}

/* Pushes the record of each round when the CPU has stored the round's number, or a later one. */
extern "C" __global__ void report(const gdr_inbox *inbox, const volatile unsigned int *asked,
				  unsigned int *, unsigned int first, unsigned int rounds)
{
	gdrpy::InboxWriter writer(inbox);

	for (unsigned int round = first; round < first + rounds; round++) {
		record one;

		for (int i = 0; i < WORDS; i++)
			one.word[i] = round;
		while (*asked < round)
			;
		if (!writer.push_relaxed(one))
			return;
	}
}

/* Answers each request by its complement, and stores how many were wrong. */
extern "C" __global__ void answer(const gdr_link *link, const volatile unsigned int *,
				  unsigned int *wrong, unsigned int first, unsigned int rounds)
{
	gdrpy::LinkServer server(link);
	unsigned int bad = 0;
	record one;

	for (unsigned int round = first; round < first + rounds && server.next_relaxed(one);
	     round++) {
		record reply;

		for (int i = 0; i < WORDS; i++)
			reply.word[i] = ~one.word[i];
		server.answer_relaxed(0, reply);
		server.release(1);
		bad += !is_right(one, round);
	}
	*wrong = bad;
}
