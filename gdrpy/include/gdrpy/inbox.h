/* SPDX-License-Identifier: MIT */
/*
 * Slots for records whose every word is stamped with the record's number, and an inbox: a ring of
 * them in page-locked host memory, into which any thread of any kernel may push. Both ends, for C,
 * CUDA C++ and NVRTC, without another header; compiled for the CPU, the kernel's end is what stands
 * in for kernels in tests. docs/channel-protocol.md describes the protocol, and why its memory
 * order is right.
 */
#ifndef GDRPY_INBOX_H
#define GDRPY_INBOX_H

#define GDR_INBOX_MAGIC 0x584f424e49524447ull /* "GDRINBOX" in memory */
#define GDR_INBOX_VERSION 1

/* In the word `taken`: the reader takes no more. */
#define GDR_INBOX_CLOSED (1ull << 63)

/*
 * Record number i lies in slot i % capacity, of 2 * record_nbytes bytes. Its 32-bit words are the
 * low halves of 64-bit ones, whose high halves are the stamp: the low 32 bits of i + capacity.
 */
struct gdr_slots {
	unsigned long long address;
	unsigned long long capacity;	  /* a power of two up to 2**31 */
	unsigned long long record_nbytes; /* a multiple of 16 */
};

/*
 * A kernel gets the address of this structure: 64 bytes in GPU memory, written once. Its addresses
 * are the GPU's. The counters count all records ever and never wrap.
 */
struct gdr_inbox {
	unsigned long long magic;
	unsigned int version;
	unsigned int unused;
	struct gdr_slots slots;	     /* in host memory */
	unsigned long long reserved; /* in GPU memory: how many numbers producers have taken */
	unsigned long long taken;    /* in GPU memory: how many records, at least, the reader has */
	unsigned long long end;	     /* in host memory: 1 + all records, once no more will come */
};

/* The accesses of the kernel's end, each of one instruction. Addresses are integers. */
#if defined(__CUDACC__) || defined(__CUDA__)
#define GDR_KERNEL static __device__ __forceinline__

GDR_KERNEL unsigned long long gdr_load_acquire(unsigned long long address)
{
	unsigned long long value;

	asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
	return value;
}

GDR_KERNEL unsigned long long gdr_load(unsigned long long address)
{
	unsigned long long value;

	asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
	return value;
}

/* Two words of 64 bits. Each is whole; nothing orders them. */
GDR_KERNEL void gdr_load_pair(unsigned long long address, unsigned long long pair[2])
{
	asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
		     : "=l"(pair[0]), "=l"(pair[1])
		     : "l"(address)
		     : "memory");
}

GDR_KERNEL void gdr_load_pair_acquire(unsigned long long address, unsigned long long pair[2])
{
	asm volatile("ld.acquire.sys.global.v2.u64 {%0, %1}, [%2];"
		     : "=l"(pair[0]), "=l"(pair[1])
		     : "l"(address)
		     : "memory");
}

/* Each arrives whole; nothing orders them. */
GDR_KERNEL void gdr_store_pair(unsigned long long address, unsigned long long first,
			       unsigned long long second)
{
	asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(address), "l"(first),
		     "l"(second)
		     : "memory");
}

GDR_KERNEL void gdr_store(unsigned long long address, unsigned long long value)
{
	asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

/* The CPU that sees a store after this sees what this thread did, or had seen, before it. */
GDR_KERNEL void gdr_release_fence(void)
{
	asm volatile("fence.acq_rel.sys;" ::: "memory");
}

GDR_KERNEL unsigned long long gdr_fetch_add(unsigned long long address, unsigned long long value)
{
	unsigned long long found;

	asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;"
		     : "=l"(found)
		     : "l"(address), "l"(value)
		     : "memory");
	return found;
}

GDR_KERNEL int gdr_exchange(unsigned long long address, unsigned long long *expected,
			    unsigned long long value)
{
	unsigned long long found;
	int done;

	asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;"
		     : "=l"(found)
		     : "l"(address), "l"(*expected), "l"(value)
		     : "memory");
	done = found == *expected;
	*expected = found;
	return done;
}
#else
#define GDR_KERNEL static inline

GDR_KERNEL unsigned long long gdr_load_acquire(unsigned long long address)
{
	return __atomic_load_n((unsigned long long *)address, __ATOMIC_ACQUIRE);
}

GDR_KERNEL unsigned long long gdr_load(unsigned long long address)
{
	return __atomic_load_n((unsigned long long *)address, __ATOMIC_RELAXED);
}

GDR_KERNEL void gdr_load_pair(unsigned long long address, unsigned long long pair[2])
{
	pair[0] = gdr_load(address);
	pair[1] = gdr_load(address + 8);
}

GDR_KERNEL void gdr_load_pair_acquire(unsigned long long address, unsigned long long pair[2])
{
	pair[0] = gdr_load_acquire(address);
	pair[1] = gdr_load_acquire(address + 8);
}

/* Released, as gdr_release_fence() does nothing here: ThreadSanitizer understands no fences. */
GDR_KERNEL void gdr_store(unsigned long long address, unsigned long long value)
{
	__atomic_store_n((unsigned long long *)address, value, __ATOMIC_RELEASE);
}

GDR_KERNEL void gdr_store_pair(unsigned long long address, unsigned long long first,
			       unsigned long long second)
{
	gdr_store(address + 8, second); /* not in order: no reader may count on that */
	gdr_store(address, first);
}

GDR_KERNEL void gdr_release_fence(void)
{
}

GDR_KERNEL unsigned long long gdr_fetch_add(unsigned long long address, unsigned long long value)
{
	return __atomic_fetch_add((unsigned long long *)address, value, __ATOMIC_RELAXED);
}

GDR_KERNEL int gdr_exchange(unsigned long long address, unsigned long long *expected,
			    unsigned long long value)
{
	return __atomic_compare_exchange_n((unsigned long long *)address, expected, value, 0,
					   __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}
#endif

/* What the slot's words of a record have in their high halves. */
GDR_KERNEL unsigned long long gdr_slot_stamp(const struct gdr_slots *slots,
					     unsigned long long number)
{
	return (number + slots->capacity) << 32;
}

/* Where 16 bytes of a record, number `piece` of them, lie in its slot. */
GDR_KERNEL unsigned long long gdr_slot_address(const struct gdr_slots *slots,
					       unsigned long long number, unsigned int piece)
{
	return slots->address + piece * 32ull +
	       (number & (slots->capacity - 1)) * 2 * slots->record_nbytes;
}

/* Store 16 bytes of a record, number `piece` of them, to the record's slot, which must be free. */
GDR_KERNEL void gdr_slot_put16(const struct gdr_slots *slots, unsigned long long number,
			       unsigned int piece, const unsigned int words[4])
{
	unsigned long long stamp = gdr_slot_stamp(slots, number);
	unsigned long long address = gdr_slot_address(slots, number, piece);

	gdr_store_pair(address, stamp | words[0], stamp | words[1]);
	gdr_store_pair(address + 16, stamp | words[2], stamp | words[3]);
}

/*
 * Load the slot's words of `count` times 16 bytes of a record, from number `piece` on, 4 for each,
 * and return whether all have arrived: their low halves are the record. If `acquires`, a thread
 * that has any of them sees what was stored before the record, so the last load alone orders what
 * follows. Without that it takes less time.
 */
GDR_KERNEL int gdr_slot_look(const struct gdr_slots *slots, unsigned long long number,
			     unsigned int piece, unsigned int count, unsigned long long *words,
			     int acquires)
{
	unsigned long long address = gdr_slot_address(slots, number, piece);
	unsigned long long stamp = gdr_slot_stamp(slots, number), even = 0, odd = 0;
	unsigned int last = 4 * count - 2;

	for (unsigned int i = 0; i < last; i += 2)
		gdr_load_pair(address + 8ull * i, &words[i]);
	if (acquires)
		gdr_load_pair_acquire(address + 8ull * last, &words[last]);
	else
		gdr_load_pair(address + 8ull * last, &words[last]);
	/* The last first, or compilers put this work before its load, which makes two rounds. */
	if (((words[last] ^ stamp) | (words[last + 1] ^ stamp)) >> 32)
		return 0;
	for (unsigned int i = 0; i < last; i += 2) {
		even |= words[i] ^ stamp;
		odd |= words[i + 1] ^ stamp;
	}
	return !((even | odd) >> 32);
}

/* The same, acquiring. */
GDR_KERNEL int gdr_slot_load(const struct gdr_slots *slots, unsigned long long number,
			     unsigned int piece, unsigned int count, unsigned long long *words)
{
	return gdr_slot_look(slots, number, piece, count, words, 1);
}

/* The numbers of the next `count` records, from the one returned on. */
GDR_KERNEL unsigned long long gdr_inbox_reserve(const struct gdr_inbox *inbox, unsigned int count)
{
	return gdr_fetch_add(inbox->reserved, count);
}

/*
 * The same without waiting for room: returns how many numbers it has reserved, up to `count`, from
 * *number on; 0 also if the reader is closed. *taken is `taken` as last loaded, at first 0.
 */
GDR_KERNEL unsigned int gdr_inbox_try_reserve(const struct gdr_inbox *inbox, unsigned int count,
					      unsigned long long *number, unsigned long long *taken)
{
	unsigned long long reserved = gdr_load_acquire(inbox->reserved), room;
	unsigned int granted;

	do {
		if (reserved - *taken + count > inbox->slots.capacity) {
			unsigned long long now = gdr_load_acquire(inbox->taken);

			if (now & GDR_INBOX_CLOSED)
				return 0;
			*taken = now;
			reserved = gdr_load_acquire(inbox->reserved); /* last: no less than taken */
			/* Or more than there is room for: others wait, whom nothing may pass. */
			if (reserved - now >= inbox->slots.capacity)
				return 0;
		}
		room = inbox->slots.capacity - (reserved - *taken);
		granted = count < room ? count : (unsigned int)room;
	} while (!gdr_exchange(inbox->reserved, &reserved, reserved + granted));
	*number = reserved;
	return granted;
}

/* Look once whether the slot of a reserved number is free: 1, or 0; -1 if the reader is closed. */
GDR_KERNEL int gdr_inbox_free(const struct gdr_inbox *inbox, unsigned long long number,
			      unsigned long long *taken)
{
	unsigned long long now;

	if (number - *taken < inbox->slots.capacity)
		return 1;
	now = gdr_load_acquire(inbox->taken);
	if (now & GDR_INBOX_CLOSED)
		return -1;
	*taken = now;
	return number - now < inbox->slots.capacity;
}

/* Whether the reader takes no more records. */
GDR_KERNEL int gdr_inbox_closed(const struct gdr_inbox *inbox)
{
	return (gdr_load_acquire(inbox->taken) & GDR_INBOX_CLOSED) != 0;
}

/* Tell the reader that no record follows those reserved by now. */
GDR_KERNEL void gdr_inbox_finish(const struct gdr_inbox *inbox)
{
	gdr_store(inbox->end, gdr_load_acquire(inbox->reserved) + 1);
}

#if !defined(__CUDACC__) && !defined(__CUDA__)
/* The CPU's end. Here the addresses are this process's. One thread at a time may use a reader. */

#include <string.h>

/* Loads of 16 bytes are twice as fast, but ThreadSanitizer does not take them for atomic. */
#if defined(__has_feature)
#define GDR_HAS_FEATURE(feature) __has_feature(feature)
#else
#define GDR_HAS_FEATURE(feature) 0
#endif
#if defined(__SSE2__) && !defined(__SANITIZE_THREAD__) && !GDR_HAS_FEATURE(thread_sanitizer)
#include <emmintrin.h>
#define GDR_SLOT_SSE2

/* Whether any bit is set. */
static inline int gdr_any(__m128i bits)
{
	return _mm_movemask_epi8(_mm_cmpeq_epi32(bits, _mm_setzero_si128())) != 0xffff;
}
#endif

struct gdr_inbox_reader {
	struct gdr_slots slots;
	unsigned long long *taken; /* in GPU memory, through a mapping */
	unsigned long long *end;
	unsigned long long *head;  /* in host memory: records taken, for the next reader */
	unsigned long long popped; /* the same */
	unsigned long long told;   /* as last stored to *taken */
};

/* Make everything before it happen before the store, and push the store out of the CPU's buffers.
 */
static inline void gdr_publish(unsigned long long *address, unsigned long long value)
{
#if defined(__x86_64__)
	/* Loads come before later stores anyway, and of stores only write-combined ones do not. */
	__asm__ volatile("sfence" ::: "memory");
	__atomic_store_n(address, value, __ATOMIC_RELEASE);
	__asm__ volatile("sfence" ::: "memory");
#elif defined(__aarch64__)
	__asm__ volatile("dmb osh" ::: "memory");
	__atomic_store_n(address, value, __ATOMIC_RELEASE);
	__asm__ volatile("dmb oshst" ::: "memory");
#else
#error "gdrpy supports only x86_64 and arm64"
#endif
}

/* A whole record as a kernel's threads store it, by the kernel's end on the CPU. */
static inline void gdr_slot_put(const struct gdr_slots *slots, unsigned long long number,
				const char *record)
{
	for (unsigned int piece = 0; piece < slots->record_nbytes / 16; piece++) {
		unsigned int words[4];

		memcpy(words, record + piece * 16, sizeof(words));
		gdr_slot_put16(slots, number, piece, words);
	}
}

/*
 * Whether all words of a record have arrived. If `record` is not NULL they are copied there,
 * whether or not. What the kernel did before it pushed the record is visible then.
 */
#if defined(GDR_SLOT_SSE2)
static inline int gdr_slot_get(const struct gdr_slots *slots, unsigned long long number,
			       char *record)
{
	/*
	 * Each half of an aligned load is one access, and x86 performs loads in order. Volatile, or
	 * compilers load words twice: for the data, and later for the stamps.
	 */
	const volatile __m128i *words =
		(const volatile __m128i *)gdr_slot_address(slots, number, 0);
	const __m128i stamp = _mm_set1_epi32((int)(number + slots->capacity));
	__m128i wrong = _mm_setzero_si128();

	__asm__ volatile("" ::: "memory");
	for (unsigned long long i = 0; i < slots->record_nbytes / 16; i++) {
		__m128 first = _mm_castsi128_ps(words[2 * i]);
		__m128 second = _mm_castsi128_ps(words[2 * i + 1]);
		__m128 data = _mm_shuffle_ps(first, second, _MM_SHUFFLE(2, 0, 2, 0));
		__m128 stamps = _mm_shuffle_ps(first, second, _MM_SHUFFLE(3, 1, 3, 1));

		wrong = _mm_or_si128(wrong, _mm_xor_si128(_mm_castps_si128(stamps), stamp));
		if (record)
			_mm_storeu_ps((float *)(record + 16 * i), data);
		else if (gdr_any(wrong))
			return 0;
	}
	__asm__ volatile("" ::: "memory");
	return !gdr_any(wrong);
}
#else
static inline int gdr_slot_get(const struct gdr_slots *slots, unsigned long long number,
			       char *record)
{
	const unsigned long long *words =
		(const unsigned long long *)gdr_slot_address(slots, number, 0);
	unsigned long long stamp = gdr_slot_stamp(slots, number), wrong = 0;

	for (unsigned long long i = 0; i < slots->record_nbytes / 4; i += 2) {
		unsigned long long low = __atomic_load_n(&words[i], __ATOMIC_ACQUIRE) ^ stamp;
		unsigned long long high = __atomic_load_n(&words[i + 1], __ATOMIC_ACQUIRE) ^ stamp;
		unsigned long long both = (low & 0xffffffff) | high << 32;

		wrong |= low | high;
		if (record)
			memcpy(record + i * 4, &both, sizeof(both));
		else if (wrong >> 32)
			return 0;
	}
	return !(wrong >> 32);
}
#endif

/* Continue where the last reader has stopped, and give the producers all of its room. */
static inline void gdr_inbox_begin(struct gdr_inbox_reader *reader)
{
	reader->popped = reader->told = __atomic_load_n(reader->head, __ATOMIC_ACQUIRE);
	gdr_publish(reader->taken, reader->told);
}

/* Whether gdr_inbox_close() was called. */
static inline int gdr_inbox_is_closed(const struct gdr_inbox_reader *reader)
{
	return (__atomic_load_n(&reader->told, __ATOMIC_RELAXED) & GDR_INBOX_CLOSED) != 0;
}

/* Count the records that are ready, up to `most`; none once the reader is closed. */
static inline unsigned long long gdr_inbox_ready(const struct gdr_inbox_reader *reader,
						 unsigned long long most)
{
	unsigned long long count = 0;

	if (gdr_inbox_is_closed(reader))
		return 0;
	while (count < most && gdr_slot_get(&reader->slots, reader->popped + count, 0))
		count++;
	return count;
}

/* Take the records that are ready, up to `most`, and return how many; does not wait. */
static inline unsigned long long gdr_inbox_pop(struct gdr_inbox_reader *reader, void *records,
					       unsigned long long most)
{
	unsigned long long count = 0;
	char *record = (char *)records;

	if (gdr_inbox_is_closed(reader))
		return 0;
	while (count < most && gdr_slot_get(&reader->slots, reader->popped + count, record)) {
		record += reader->slots.record_nbytes;
		count++;
	}
	if (!count)
		return 0;
	reader->popped += count;
	__atomic_store_n(reader->head, reader->popped, __ATOMIC_RELEASE);
	/* Producers seldom need the room at once, and the store crosses the bus. */
	if (reader->popped - reader->told >= (reader->slots.capacity + 3) / 4) {
		reader->told = reader->popped;
		gdr_publish(reader->taken, reader->told);
	}
	return count;
}

/* Whether no more records will come: all were taken, or the reader is closed. */
static inline int gdr_inbox_ended(const struct gdr_inbox_reader *reader)
{
	unsigned long long end = __atomic_load_n(reader->end, __ATOMIC_ACQUIRE);

	return (end && reader->popped >= end - 1) || gdr_inbox_is_closed(reader);
}

/* Take no more records: producers are told when they next look for room. */
static inline void gdr_inbox_close(struct gdr_inbox_reader *reader)
{
	__atomic_store_n(&reader->told, reader->popped | GDR_INBOX_CLOSED, __ATOMIC_RELAXED);
	gdr_publish(reader->taken, reader->told);
}
#endif

#endif
