/* SPDX-License-Identifier: MIT */
/*
 * Records from a kernel to the CPU, by an inbox and by a hand-written ring of host memory as
 * proxies have it: a flag in each slot, stored behind a fence. For NVRTC, as inbox_kernel.cu.
 * Records are those of rivalrings.h.
 */
#include <gdrpy/channel.cuh>

#define ODD 0x9E3779B97F4A7C15ull

template <int WORDS> struct record {
	unsigned long long word[WORDS];
};

template <int WORDS> static __device__ record<WORDS> made(unsigned long long index)
{
	unsigned long long first = (unsigned long long)threadIdx.x << 40 | (index + 1);
	record<WORDS> one = {{first}};

	for (int i = 1; i < WORDS; i++)
		one.word[i] = (first * 8 + i) * ODD >> 1 | 1;
	return one;
}

/* As in rivalrings.c. */
struct hand {
	unsigned long long capacity;
	unsigned long long *head;	   /* in GPU memory: numbers taken by threads */
	char *slots;			   /* in host memory */
	volatile unsigned long long *tail; /* in host memory: records taken by the CPU */
};

class HandWriter
{
      public:
	__device__ explicit HandWriter(const hand *ring) : ring_(*ring), tail_(0)
	{
	}

	template <int WORDS> __device__ bool push(const record<WORDS> &one)
	{
		struct slot {
			ulonglong2 pair[WORDS / 2];
			unsigned long long flag, unused;
		};
		unsigned long long number = atomicAdd(ring_.head, 1ull);
		slot *place = (slot *)ring_.slots + (number & (ring_.capacity - 1));

		while (number >= tail_ + ring_.capacity)
			tail_ = *ring_.tail;
		for (int i = 0; i < WORDS / 2; i++)
			place->pair[i] = make_ulonglong2(one.word[2 * i], one.word[2 * i + 1]);
		__threadfence_system();
		*(volatile unsigned long long *)&place->flag = number + 1;
		return true;
	}

      private:
	const hand ring_;
	unsigned long long tail_;
};

class RelaxedWriter : public gdrpy::InboxWriter
{
      public:
	using gdrpy::InboxWriter::InboxWriter;

	template <int WORDS> __device__ bool push(const record<WORDS> &one)
	{
		return push_relaxed(one);
	}
};

/* One block of any number of threads. */
template <int WORDS, class Writer>
static __device__ void push_all(Writer writer, unsigned long long first, unsigned long long count)
{
	for (unsigned long long index = first; index < first + count; index++)
		if (!writer.push(made<WORDS>(index)))
			return;
}

/* Waits until the CPU has stored more than `index`, and sees what it had stored before. */
static __device__ void wait_for(const gdrpy::InboxWriter &, const unsigned long long *token,
				unsigned long long index)
{
	while (gdr_load_acquire((unsigned long long)token) <= index)
		;
}

static __device__ void wait_for(const HandWriter &, const volatile unsigned long long *token,
				unsigned long long index)
{
	while (*token <= index)
		;
	__threadfence_system();
}

/* One thread: pushes record `index` when the CPU has stored index + 1, or more. */
template <class Writer>
static __device__ void answer_all(Writer writer, const unsigned long long *token,
				  unsigned long long first, unsigned long long count)
{
	for (unsigned long long index = first; index < first + count; index++) {
		wait_for(writer, token, index);
		if (!writer.push(made<2>(index)))
			return;
	}
}

#define KERNELS(NAME, WRITER, RING)                                                                \
	extern "C" __global__ void NAME##16(const RING *ring, const unsigned long long *,          \
					    unsigned long long first, unsigned long long count)    \
	{                                                                                          \
		push_all<2>(WRITER(ring), first, count);                                           \
	}                                                                                          \
	extern "C" __global__ void NAME##64(const RING *ring, const unsigned long long *,          \
					    unsigned long long first, unsigned long long count)    \
	{                                                                                          \
		push_all<8>(WRITER(ring), first, count);                                           \
	}                                                                                          \
	extern "C" __global__ void NAME##_answer(                                                  \
		const RING *ring, const unsigned long long *token, unsigned long long first,       \
		unsigned long long count)                                                          \
	{                                                                                          \
		answer_all(WRITER(ring), token, first, count);                                     \
	}

KERNELS(inbox, gdrpy::InboxWriter, gdr_inbox)
KERNELS(relaxed, RelaxedWriter, gdr_inbox)
KERNELS(hand, HandWriter, hand)
