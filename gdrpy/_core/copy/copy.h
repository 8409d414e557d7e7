/* SPDX-License-Identifier: MIT */
/*
 * The copy engine: between ordinary memory and a CPU mapping of GPU memory.
 *
 * What a mapping is made of decides how to copy. Write-combined memory wants whole aligned lines on
 * the way in, and streaming loads on the way out (a plain load is one bus round trip each); cached
 * memory wants memcpy; device-type memory takes only naturally aligned accesses.
 *
 * No copy to a mapping fences: core_store_fence() before telling anybody to look.
 */
#ifndef GDRPY_COPY_H
#define GDRPY_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The numbers of gdrcopy's mapping types. */
enum core_mapping_kind {
	CORE_MAPPING_NONE = 0,
	CORE_MAPPING_WC = 1,
	CORE_MAPPING_CACHED = 2,
	CORE_MAPPING_DEVICE = 3,
};

typedef void (*core_copy_fn)(void *dst, const void *src, size_t nbytes);

/* Any routine takes any alignment and any size, zero too, of ranges that do not overlap. */
struct core_copy_routine {
	const char *name;
	core_copy_fn copy;
	bool (*supported)(void);
	size_t best_up_to; /* bytes; larger copies are faster by a later routine of the table */
};

/* Every routine of this build, best first, ended by a NULL name; some may lack support here. */
const struct core_copy_routine *core_routines_to_wc(void);
const struct core_copy_routine *core_routines_from_wc(void);

/*
 * Copy with the best routine for the mapping's type, this CPU and the size. Any alignment; one
 * naturally aligned word of 1, 2, 4 or 8 bytes is one access, so a flag is never seen torn. A read
 * sees all that the GPU had written by the time this thread's reads before it were answered, and
 * has ended before a store after it is seen: the GPU may be told then to overwrite what was read.
 */
void core_copy_to(enum core_mapping_kind type, void *mapping, const void *host, size_t nbytes);
void core_copy_from(enum core_mapping_kind type, void *host, const void *mapping, size_t nbytes);

/* The routine that a copy of this size to or from write-combined memory takes, words aside. */
const char *core_routine_to_wc(size_t nbytes);
const char *core_routine_from_wc(size_t nbytes);

/*
 * Whether two ranges have a byte in common. A copy between such would find bytes that it has stored
 * itself, or that still wait in the write-combining buffers: callers refuse it.
 */
static inline bool core_overlap(const void *one, size_t nbytes, const void *other,
				size_t other_nbytes)
{
	uintptr_t apart = (uintptr_t)one - (uintptr_t)other;

	return nbytes && other_nbytes && apart + nbytes - 1 < nbytes + other_nbytes - 1;
}

/*
 * The GPU sees all stores before it ahead of any store after it. On x86 they have also left the
 * CPU's write-combining buffers when it returns.
 */
static inline void core_store_fence(void)
{
#if defined(__x86_64__)
	__builtin_ia32_sfence();
#elif defined(__aarch64__)
	__asm__ volatile("dmb oshst" ::: "memory");
#else
#error "the copy engine knows x86_64 and arm64"
#endif
}

/*
 * Loads after it see what the GPU had written when the loads before it were answered. Loads from
 * write-combined memory pass each other, and a streaming load may be answered from a fill buffer
 * that an earlier one left behind; for both, the manuals of MOVNTDQA ask for MFENCE (not LFENCE)
 * before data that another agent writes is read again.
 */
static inline void core_load_fence(void)
{
#if defined(__x86_64__)
	__builtin_ia32_mfence();
#elif defined(__aarch64__)
	__asm__ volatile("dmb oshld" ::: "memory");
#endif
}

/* Nothing after it passes anything before it, also between mappings of several types. */
static inline void core_full_fence(void)
{
#if defined(__x86_64__)
	__builtin_ia32_mfence();
#elif defined(__aarch64__)
	__asm__ volatile("dmb osh" ::: "memory");
#endif
}

#endif
