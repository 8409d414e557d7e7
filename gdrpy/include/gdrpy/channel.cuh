/* SPDX-License-Identifier: MIT */
/*
 * The consumer's end of a channel in CUDA C++, for one thread or for one thread block. It needs
 * only channel.h and compute capability 7.0 or newer. docs/channel.md describes the protocol.
 *
 *	extern "C" __global__ void serve(const gdr_channel *channel)
 *	{
 *		gdrpy::ChannelReader reader(channel);
 *
 *		while (unsigned long long n = reader.wait()) { // 0: the end
 *			for (unsigned long long i = 0; i < n; i++)
 *				work_on(reader.load<Order>(i));
 *			reader.release(n);
 *		}
 *	}
 */
#ifndef GDRPY_CHANNEL_CUH
#define GDRPY_CHANNEL_CUH

#include <gdrpy/channel.h>

namespace gdrpy
{

/* For one thread; or each thread of a block has a copy, and all call the *_block functions. */
class ChannelReader
{
      public:
	/* Continues after the records that earlier consumers have taken. */
	__device__ explicit ChannelReader(const gdr_channel *channel)
	    : channel_(*channel), head_(acquire(channel->head))
	{
	}

	/* Whether the address is that of a channel of this header's version. */
	__device__ bool valid() const
	{
		return channel_.magic == GDR_CHANNEL_MAGIC &&
		       channel_.version == GDR_CHANNEL_VERSION;
	}

	__device__ unsigned int record_nbytes() const
	{
		return channel_.record_nbytes;
	}
	__device__ unsigned long long capacity() const
	{
		return channel_.capacity;
	}

	/* How many records were released, which is the index of the first ready one. */
	__device__ unsigned long long popped() const
	{
		return head_;
	}

	/* How many records are ready now, without waiting. */
	__device__ unsigned long long ready() const
	{
		return acquire(channel_.tail) - head_;
	}

	/* Waits until records are ready, and returns how many; 0 at the end. For one thread. */
	__device__ unsigned long long wait() const
	{
		for (;;) {
			if (unsigned long long n = ready())
				return n;
			if (acquire(channel_.closed))
				return ready(); /* pushed before the close */
		}
	}

	/* The same for a block: all its threads call it, and get the same result. */
	__device__ unsigned long long wait_block() const
	{
		__shared__ unsigned long long shared;
		unsigned long long n;

		if (is_first_thread())
			shared = wait();
		__syncthreads();
		n = shared;
		__syncthreads(); /* all threads have read it before the next call changes it */
		return n;
	}

	/*
	 * 16 bytes of ready record i, counted from 0. The load bypasses the L1 cache, which does
	 * not see later stores of the CPU.
	 */
	__device__ uint4 load16(unsigned long long i, unsigned int piece) const
	{
		unsigned long long slot = (head_ + i) & (channel_.capacity - 1);
		unsigned long long address =
			channel_.records + slot * channel_.record_nbytes + piece * 16ull;
		uint4 value;

		asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
			     : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
			     : "l"(address)
			     : "memory");
		return value;
	}

	/* A ready record as a T, a trivial type of up to record_nbytes bytes. */
	template <class T> __device__ T load(unsigned long long i) const
	{
		union {
			uint4 pieces[(sizeof(T) + 15) / 16];
			T value;
		} record;

		for (unsigned int piece = 0; piece < (sizeof(T) + 15) / 16; piece++)
			record.pieces[piece] = load16(i, piece);
		return record.value;
	}

	/* Returns the slots of the first n ready records to the CPU. For one thread. */
	__device__ void release(unsigned long long n)
	{
		head_ += n;
		store(channel_.head, head_);
	}

	/* The same for a block, each of whose threads calls it after its last load of them. */
	__device__ void release_block(unsigned long long n)
	{
		head_ += n;
		__syncthreads();
		if (is_first_thread())
			store(channel_.head, head_);
	}

	/* Takes no more records: the CPU's pushes raise Closed. For one thread. */
	__device__ void stop()
	{
		store(channel_.stopped, 1);
	}

      private:
	static __device__ bool is_first_thread()
	{
		return threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0;
	}

	static __device__ unsigned long long acquire(unsigned long long address)
	{
		unsigned long long value;

		asm volatile("ld.acquire.sys.global.u64 %0, [%1];"
			     : "=l"(value)
			     : "l"(address)
			     : "memory");
		return value;
	}

	static __device__ void store(unsigned long long address, unsigned long long value)
	{
		__threadfence_system(); /* records are loaded before their slots are returned */
		*(volatile unsigned long long *)address = value;
	}

	const gdr_channel channel_;
	unsigned long long head_;
};

} // namespace gdrpy

#endif
