/* SPDX-License-Identifier: MIT */
/*
 * The kernel's end of channels, inboxes and links in CUDA C++. It needs only channel.h and inbox.h,
 * and compute capability 7.0 or newer. docs/channel-protocol.md describes the protocol.
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

/* Of its block. */
static __device__ __forceinline__ bool is_first_thread()
{
	return threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0;
}

/*
 * 0, which the compiler does not know. It takes what is computed with it to differ by thread. What
 * it knows to be the same for a warp it moves from the thread's registers to the warp's and back,
 * which takes longer than the rest of the work on a request.
 */
static __device__ __forceinline__ unsigned int thread_zero()
{
	unsigned int before;

	asm("mov.u32 %0, %%lanemask_lt;" : "=r"(before));
	return before >> 31; /* lane 31 is before none */
}

/* The number of the thread in its warp. */
static __device__ __forceinline__ unsigned int lane()
{
	unsigned int number;

	asm("mov.u32 %0, %%laneid;" : "=r"(number));
	return number;
}

/* The slots of an inbox or of answers, which any thread may store to. */
class SlotWriter
{
      public:
	__device__ explicit SlotWriter(const gdr_slots &slots) : slots_(slots)
	{
	}

	/* Has the compiler find the place of a record now, and not first when it is stored. */
	__device__ void prepare(unsigned long long number) const
	{
		asm volatile("" ::"l"(gdr_slot_address(&slots_, number, 0)),
			     "l"(gdr_slot_stamp(&slots_, number)));
	}

	/*
	 * Stores 8 bytes of a record, all of whose bytes must be stored, by any threads. Quickest
	 * if threads of a warp store adjacent parts at once.
	 */
	__device__ void put8(unsigned long long number, unsigned int part, uint2 value) const
	{
		unsigned long long stamp = gdr_slot_stamp(&slots_, number);

		gdr_store_pair(gdr_slot_address(&slots_, number, 0) + part * 16ull, stamp | value.x,
			       stamp | value.y);
	}

	/* Stores 16 bytes of a record, all of whose bytes must be stored, by any threads. */
	__device__ void put16(unsigned long long number, unsigned int piece, uint4 value) const
	{
		const unsigned int words[4] = {value.x, value.y, value.z, value.w};

		gdr_slot_put16(&slots_, number, piece, words);
	}

	/* Stores a record, a trivial type of up to record_nbytes bytes; zeros follow it. */
	template <class T> __device__ void put(unsigned long long number, const T &value) const
	{
		const unsigned int pieces = (sizeof(T) + 15) / 16;
		union {
			uint4 pieces[(sizeof(T) + 15) / 16];
			T value;
		} record;

		record.pieces[pieces - 1] = make_uint4(0, 0, 0, 0);
		record.value = value;
		for (unsigned int piece = 0; piece < pieces; piece++)
			put16(number, piece, record.pieces[piece]);
		for (unsigned int piece = pieces; piece < slots_.record_nbytes / 16; piece++)
			put16(number, piece, make_uint4(0, 0, 0, 0));
	}

      private:
	const gdr_slots slots_;
};

/*
 * A producer of an inbox: one for each thread. Threads of a warp that push at the same time take
 * their numbers by one atomic.
 *
 *	extern "C" __global__ void report(const gdr_inbox *inbox)
 *	{
 *		gdrpy::InboxWriter writer(inbox);
 *
 *		writer.push(Event{blockIdx.x, threadIdx.x}); // false: the CPU takes no more
 *	}
 */
class InboxWriter
{
      public:
	__device__ explicit InboxWriter(const gdr_inbox *inbox)
	    : inbox_(*inbox), slots_(inbox->slots), taken_(0)
	{
	}

	/* Whether the address is that of an inbox of this header's version. */
	__device__ bool valid() const
	{
		return inbox_.magic == GDR_INBOX_MAGIC && inbox_.version == GDR_INBOX_VERSION;
	}

	__device__ unsigned long long record_nbytes() const
	{
		return inbox_.slots.record_nbytes;
	}
	__device__ unsigned long long capacity() const
	{
		return inbox_.slots.capacity;
	}

	/*
	 * Pushes a record, and waits while there is no room. False if the reader is closed, which
	 * is noticed when the ring may be full. A CPU that has the record sees all that this
	 * thread stored before.
	 */
	template <class T> __device__ bool push(const T &record)
	{
		Together together(inbox_.reserved);

		return push(record, together, reserve(together, true));
	}

	/* The same in less time, for a record that tells of nothing else that was stored. */
	template <class T> __device__ bool push_relaxed(const T &record)
	{
		Together together(inbox_.reserved);

		return push(record, together, reserve(together, false));
	}

	/* The same as push(), but false also if there is no room now. */
	template <class T> __device__ bool try_push(const T &record)
	{
		Together together(inbox_.reserved);
		unsigned long long first = 0;
		unsigned int granted = 0;

		if (together.leads())
			granted = gdr_inbox_try_reserve(&inbox_, together.count, &first, &taken_);
		granted = together.from_leader(granted);
		first = together.from_leader(first);
		__syncwarp(together.mask); /* all store after the leader has loaded `taken` */
		if (together.rank >= granted)
			return false;
		gdr_release_fence();
		slots_.put(first + together.rank, record);
		return true;
	}

	/*
	 * The steps of a push, for records that several threads store: the number of the next
	 * record; waiting for its slot, false if the reader is closed; and its pieces. If threads
	 * of a warp reserve at the same time, the inbox must have a capacity of 64 or more, so that
	 * none of them waits for the record of another.
	 */
	__device__ unsigned long long reserve()
	{
		return reserve(Together(inbox_.reserved), false);
	}

	__device__ bool wait(unsigned long long number)
	{
		int free;

		do
			free = gdr_inbox_free(&inbox_, number, &taken_);
		while (!free);
		return free > 0;
	}

	__device__ void put16(unsigned long long number, unsigned int piece, uint4 value) const
	{
		slots_.put16(number, piece, value);
	}

	/* Whether the reader takes no more records. */
	__device__ bool closed() const
	{
		return gdr_inbox_closed(&inbox_);
	}

	/* Tells the reader that no record follows: for one thread, after all have pushed. */
	__device__ void finish() const
	{
		gdr_inbox_finish(&inbox_);
	}

      private:
	/* The threads of a warp that are here at the same time, for the same inbox. */
	struct Together {
		unsigned int mask, leader, count, rank;

		__device__ explicit Together(unsigned long long inbox) : mask(__activemask())
		{
			unsigned int before;

			if (mask & (mask - 1)) /* one thread needs no others, which takes time */
				mask = __match_any_sync(mask, inbox);
			leader = __ffs(mask) - 1;
			count = __popc(mask);
			asm("mov.u32 %0, %%lanemask_lt;" : "=r"(before));
			rank = __popc(mask & before);
		}

		__device__ bool leads() const
		{
			return rank == 0;
		}
		template <class T> __device__ T from_leader(T value) const
		{
			return count == 1 ? value : __shfl_sync(mask, value, leader);
		}
	};

	/* With a fence, which takes as long, while the numbers are on their way. */
	__device__ unsigned long long reserve(const Together &together, bool fence) const
	{
		unsigned long long first = 0;

		if (together.leads())
			first = gdr_inbox_reserve(&inbox_, together.count);
		if (fence) {
			/* For the others' stores too: a warp stores its records together. */
			__syncwarp(together.mask);
			gdr_release_fence();
		}
		return together.from_leader(first) + together.rank;
	}

	/* Pushes as a reserved number. */
	template <class T>
	__device__ bool push(const T &record, const Together &together, unsigned long long number)
	{
		int free = 0;

		if (Parts<T>::by_warp && together.count == 32 &&
		    record_nbytes() == 8 * Parts<T>::count && capacity() >= 64)
			return push_warp(record, number);
		/* No thread waits for the others before it has stored: they may need its slot. */
		do {
			if (!free) {
				free = gdr_inbox_free(&inbox_, number, &taken_);
				if (free > 0)
					slots_.put(number, record);
			}
		} while (__any_sync(together.mask, !free));
		return free > 0;
	}

	/* A record in parts of 8 bytes, each of which is 16 in its slot. */
	template <class T> struct Parts {
		enum {
			count = (sizeof(T) + 15) / 16 * 2,
			by_warp = count <= 16 && (count & (count - 1)) == 0
		};
		union {
			uint2 part[count];
			T value;
		};

		__device__ explicit Parts(const T &record)
		{
			part[count - 1] = part[count - 2] = make_uint2(0, 0);
			value = record;
		}

		/* In each group of `count` threads, part j of thread i becomes part i of j. */
		__device__ void transpose()
		{
#pragma unroll
			for (unsigned int step = 1; step < count; step *= 2) {
				bool upper = lane() & step;

#pragma unroll
				for (unsigned int i = 0; i < count; i++) {
					if (i & step)
						continue;
					uint2 given = upper ? part[i] : part[i | step];

					given.x = __shfl_xor_sync(~0u, given.x, step);
					given.y = __shfl_xor_sync(~0u, given.y, step);
					part[i] = upper ? given : part[i];
					part[i | step] = upper ? part[i | step] : given;
				}
			}
		}
	};

	/*
	 * The same by a whole warp: adjacent threads store the parts of one record at once, so that
	 * whole lines cross the bus, not 16 bytes of each. All wait before one stores. The reader
	 * tells of room by quarters of the ring, so it must have 64 slots or more, not only 32.
	 */
	template <class T> __device__ bool push_warp(const T &record, unsigned long long number)
	{
		enum {
			count = Parts<T>::count
		};
		Parts<T> parts(record);
		unsigned int part = lane() % count;
		int free;

		do
			free = gdr_inbox_free(&inbox_, number, &taken_);
		while (__any_sync(~0u, !free));
		if (__any_sync(~0u, free < 0))
			return false;
		__syncwarp(); /* each stores to the slots of others, which are free now */
		parts.transpose();
#pragma unroll
		for (unsigned int i = 0; i < count; i++)
			slots_.put8(number - part + i, part, parts.part[i]);
		return true;
	}

	const gdr_inbox inbox_;
	const SlotWriter slots_;
	unsigned long long taken_;
};

/* For one thread; or each thread of a block has a copy, and all call the *_block functions. */
class ChannelReader
{
      public:
	/* Continues after the records that earlier consumers have taken. */
	__device__ explicit ChannelReader(const gdr_channel *channel)
	    : channel_(*channel), head_(gdr_load_acquire(channel->head))
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
		return gdr_load_acquire(channel_.tail) - head_;
	}

	/* Waits until records are ready, and returns how many; 0 at the end. For one thread. */
	__device__ unsigned long long wait() const
	{
		for (;;) {
			if (unsigned long long n = ready())
				return n;
			if (gdr_load_acquire(channel_.closed))
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
	static __device__ void store(unsigned long long address, unsigned long long value)
	{
		gdr_release_fence(); /* records are loaded before their slots are returned */
		gdr_store(address, value);
	}

	const gdr_channel channel_;
	unsigned long long head_;
};

/*
 * A link's requests, each of which must be answered once. For one thread; or each thread of a block
 * has a copy, and all call the *_block functions. What an answer needs of its request must be
 * loaded, by all threads, before the answer is whole: then the CPU may push into the request's
 * slot.
 *
 *	extern "C" __global__ void serve(const gdr_link *link)
 *	{
 *		gdrpy::LinkServer server(link);
 *		Question question;
 *
 *		while (server.next(question)) { // false: the end
 *			server.answer(0, reply_to(question));
 *			server.release(1);
 *		}
 *		server.stop();
 *	}
 */
class LinkServer
{
      public:
	/* Continues after the requests that earlier servers have released. */
	__device__ explicit LinkServer(const gdr_link *link)
	    : link_(with_nearer_requests(*link)), answers_(link->answers),
	      popped_(gdr_load_acquire(link->taken) + thread_zero())
	{
	}

	/* Whether the address is that of a link of this header's version. */
	__device__ bool valid() const
	{
		return link_.magic == GDR_LINK_MAGIC && link_.version == GDR_LINK_VERSION;
	}

	__device__ unsigned long long record_nbytes() const
	{
		return link_.requests.record_nbytes;
	}
	__device__ unsigned long long answer_nbytes() const
	{
		return link_.answers.record_nbytes;
	}
	__device__ unsigned long long capacity() const
	{
		return link_.requests.capacity;
	}

	/* How many requests were released, which is the number of request 0 of the calls below. */
	__device__ unsigned long long popped() const
	{
		return popped_;
	}

	/*
	 * Waits for request 0, and loads it as a T, a trivial type of up to record_nbytes bytes;
	 * false at the end. For one thread, which then sees all that the CPU stored before.
	 */
	template <class T> __device__ bool next(T &request) const
	{
		return take<true>(request);
	}

	/* The same in less time, for a request that tells of nothing else that was stored. */
	template <class T> __device__ bool next_relaxed(T &request) const
	{
		return take<false>(request);
	}

	/*
	 * next() for a warp, all of whose threads call it: `part` becomes 8 bytes of request 0,
	 * from 8 * lane() on. A request of more than 256 bytes needs another way.
	 */
	__device__ bool next_warp(uint2 &part) const
	{
		return take_warp<true>(part);
	}

	__device__ bool next_warp_relaxed(uint2 &part) const
	{
		return take_warp<false>(part);
	}

	/* How many requests from request 0 on have arrived, up to `limit`. Does not wait. */
	__device__ unsigned long long ready(unsigned long long limit) const
	{
		unsigned long long n = 0;

		while (n < limit && has_arrived(popped_ + n))
			n++;
		return n;
	}

	/* Waits until requests are ready, and returns how many; 0 at the end. For one thread. */
	__device__ unsigned long long wait(unsigned long long limit = 1) const
	{
		for (unsigned int looks = 1;; looks++) {
			if (unsigned long long n = ready(limit))
				return n;
			if (looks % END_LOOKS == 0 && has_ended())
				return 0;
		}
	}

	/* The same for a block: all its threads call it, and get the same result. */
	__device__ unsigned long long wait_block(unsigned long long limit = 1) const
	{
		__shared__ unsigned long long shared;
		unsigned long long n;

		if (is_first_thread())
			shared = wait(limit);
		__syncthreads();
		n = shared;
		__syncthreads(); /* all threads have read it before the next call changes it */
		return n;
	}

	/*
	 * 16 bytes of ready request i, counted from 0. Where another thread has found it ready,
	 * that may have looked at its other copy: this one comes in the same moment.
	 */
	__device__ uint4 load16(unsigned long long i, unsigned int piece) const
	{
		return load_from<uint4>(i, piece);
	}

	/* A ready request as a T, a trivial type of up to record_nbytes bytes. */
	template <class T> __device__ T load(unsigned long long i) const
	{
		return load_from<T>(i, 0);
	}

	/*
	 * Answers ready request i by a trivial type of up to answer_nbytes bytes. By any one
	 * thread, in any order, before they are released. The CPU that has the answer sees all that
	 * this thread stored before.
	 */
	template <class T> __device__ void answer(unsigned long long i, const T &value) const
	{
		gdr_release_fence();
		answer_relaxed(i, value);
	}

	/* The same in less time, for an answer that tells of nothing else that was stored. */
	template <class T>
	__device__ void answer_relaxed(unsigned long long i, const T &value) const
	{
		answers_.put(popped_ + i, value);
	}

	/* 8 or 16 bytes of an answer, all of whose bytes must be stored, by any threads. */
	__device__ void answer8(unsigned long long i, unsigned int part, uint2 value) const
	{
		answers_.put8(popped_ + i, part, value);
	}

	__device__ void answer16(unsigned long long i, unsigned int piece, uint4 value) const
	{
		answers_.put16(popped_ + i, piece, value);
	}

	/* The answers by their numbers, popped() + i, for requests that were released before. */
	__device__ const SlotWriter &answers() const
	{
		return answers_;
	}

	/* Goes on to the requests after the first n. For one thread. */
	__device__ void release(unsigned long long n)
	{
		popped_ += n;
		gdr_store(link_.taken, popped_);
	}

	/* The same for a warp, or for a block, each of whose threads calls it. */
	__device__ void release_warp(unsigned long long n)
	{
		popped_ += n;
		if (lane() == 0)
			gdr_store(link_.taken, popped_);
	}

	__device__ void release_block(unsigned long long n)
	{
		popped_ += n;
		if (is_first_thread())
			gdr_store(link_.taken, popped_);
	}

	/* Answers no more requests: calls that still wait raise Closed. For one thread. */
	__device__ void stop() const
	{
		gdr_release_fence(); /* the CPU sees the answers before */
		gdr_store(link_.stopped, 1);
	}

      private:
	/* The words that a T has in a slot. */
	template <class T> struct Slot {
		enum {
			pieces = (sizeof(T) + 15) / 16
		};

		unsigned long long words[4 * pieces];

		__device__ T record() const
		{
			union {
				unsigned int words[4 * pieces];
				T value;
			} record;

			for (unsigned int i = 0; i < 4 * pieces; i++)
				record.words[i] = (unsigned int)words[i];
			return record.value;
		}
	};

	/* Looks for a request between two looks for the end, which may lie far from here. */
	enum {
		END_LOOKS = 16
	};

	/*
	 * Clock cycles of a few loads of a word. Each begins when the last has ended, which its
	 * address depends on: no compiler knows that `zero` is 0. They are volatile, because
	 * compilers drop relaxed loads whose values are not used.
	 */
	static __device__ long long time_loads(unsigned long long address, unsigned int zero)
	{
		const long long begun = clock64();

#pragma unroll 1
		for (int i = 0; i < 8; i++)
			address += *(const volatile unsigned long long *)address & zero;
		return clock64() - begun;
	}

	/* The copy of the requests that is nearer to this multiprocessor. */
	static __device__ gdr_link with_nearer_requests(gdr_link link)
	{
		time_loads(link.twin, link.unused); /* then the TLB has the two pages */
		if (time_loads(link.twin, link.unused) <
		    time_loads(link.requests.address, link.unused))
			link.requests.address = link.twin;
		return link;
	}

	template <bool acquires, class T> __device__ bool take(T &request) const
	{
		answers_.prepare(popped_);
		for (unsigned int looks = 1;; looks++) {
			Slot<T> slot;

			if (gdr_slot_look(&link_.requests, popped_, 0, slot.pieces, slot.words,
					  acquires)) {
				request = slot.record();
				return true;
			}
			if (looks % END_LOOKS == 0 && has_ended())
				return false;
		}
	}

	template <bool acquires> __device__ bool take_warp(uint2 &part) const
	{
		unsigned long long stamp = gdr_slot_stamp(&link_.requests, popped_);
		unsigned long long address =
			gdr_slot_address(&link_.requests, popped_, 0) + lane() * 16ull;
		unsigned long long words[2] = {stamp, stamp};
		bool mine = lane() < record_nbytes() / 8;

		answers_.prepare(popped_);
		for (unsigned int looks = 1;; looks++) {
			if (mine && acquires)
				gdr_load_pair_acquire(address, words);
			else if (mine)
				gdr_load_pair(address, words);
			if (__all_sync(~0u, !(((words[0] ^ stamp) | (words[1] ^ stamp)) >> 32)))
				break;
			if (looks % END_LOOKS == 0 && __any_sync(~0u, has_ended())) {
				__syncwarp(); /* stop() by one thread follows the answers of all */
				return false;
			}
		}
		__syncwarp();
		part = make_uint2((unsigned int)words[0], (unsigned int)words[1]);
		return true;
	}

	/* Whether request i, counted from 0, never will come. */
	__device__ bool has_ended(unsigned long long i = 0) const
	{
		unsigned long long end = gdr_load(link_.end);

		return end && popped_ + i >= end - 1;
	}

	/* Waits for bytes of request i; at the end for none, as its caller may have died. */
	template <class T> __device__ T load_from(unsigned long long i, unsigned int piece) const
	{
		Slot<T> slot;

		for (unsigned int looks = 1; !gdr_slot_load(&link_.requests, popped_ + i, piece,
							    slot.pieces, slot.words);
		     looks++)
			if (looks % END_LOOKS == 0 && has_ended(i))
				break;
		return slot.record();
	}

	/* In rounds of up to 64 bytes, whose loads are on their way at once. */
	__device__ bool has_arrived(unsigned long long number) const
	{
		unsigned int pieces = (unsigned int)(link_.requests.record_nbytes / 16);
		unsigned int piece = 0;
		unsigned long long words[16];

		for (; pieces - piece >= 4; piece += 4)
			if (!gdr_slot_load(&link_.requests, number, piece, 4, words))
				return false;
		for (; piece < pieces; piece++)
			if (!gdr_slot_load(&link_.requests, number, piece, 1, words))
				return false;
		return true;
	}

	const gdr_link link_;
	const SlotWriter answers_;
	unsigned long long popped_;
};

} // namespace gdrpy

#endif
