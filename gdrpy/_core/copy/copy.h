/* SPDX-License-Identifier: MIT */
/*
 * Copies by the CPU between ordinary memory and a mapping of GPU memory.
 *
 * The mapping's type decides how to copy. Write-combined memory needs whole aligned lines for
 * writes and streaming loads for reads (each plain load is a bus round trip). Cached memory needs
 * memcpy. Device memory allows only naturally aligned accesses.
 *
 * Copies to a mapping do not fence. Call core_store_fence() before signalling.
 */
#ifndef GDRPY_COPY_H
#define GDRPY_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Numbered as gdrcopy's mapping types. */
enum core_mapping_kind {
	CORE_MAPPING_NONE = 0,
	CORE_MAPPING_WC = 1,
	CORE_MAPPING_CACHED = 2,
	CORE_MAPPING_DEVICE = 3,
};

typedef void (*core_copy_fn)(void *dst, const void *src, size_t nbytes);

/* Routines take any alignment and any size, including zero. The ranges must not overlap. */
struct core_copy_routine {
	const char *name;
	core_copy_fn copy;
	bool (*supported)(void);
	size_t best_up_to; /* bytes; a later routine of the table copies more faster */
};

/* Every routine of this build, best first, ended by a NULL name. The CPU may not support all. */
extern const struct core_copy_routine core_routines_to_wc[], core_routines_from_wc[];

/*
 * Copy with the best routine for the mapping's type, this CPU and the size, at any alignment. A
 * naturally aligned word of 1, 2, 4 or 8 bytes is one access, so a flag is never torn. A read sees
 * everything that the GPU wrote before this thread's earlier reads completed. It completes before
 * any later store becomes visible, so that store may tell the GPU to overwrite the data.
 */
void core_copy_to(enum core_mapping_kind type, void *mapping, const void *host, size_t nbytes);
void core_copy_from(enum core_mapping_kind type, void *host, const void *mapping, size_t nbytes);

/* The routine that copies this size to or from write-combined memory (words excepted). */
const char *core_routine_to_wc(size_t nbytes);
const char *core_routine_from_wc(size_t nbytes);

/*
 * Whether two ranges overlap. A copy between them could read its own stores, or miss stores still
 * in the write-combining buffers, so callers refuse it.
 */
static inline bool core_overlap(const void *one, size_t nbytes, const void *other,
				size_t other_nbytes)
{
	uintptr_t apart = (uintptr_t)one - (uintptr_t)other;

	return nbytes && other_nbytes && apart + nbytes - 1 < nbytes + other_nbytes - 1;
}

/*
 * The GPU sees all earlier stores before any later store. On x86 the earlier stores have also left
 * the CPU's write-combining buffers on return.
 */
static inline void core_store_fence(void)
{
#if defined(__x86_64__)
	__builtin_ia32_sfence();
#elif defined(__aarch64__)
	__asm__ volatile("dmb oshst" ::: "memory");
#else
#error "gdrpy supports only x86_64 and arm64"
#endif
}

/*
 * Later loads see everything that the GPU wrote before the earlier loads completed. Loads from
 * write-combined memory may be reordered, and a streaming load may be served from a fill buffer
 * that an earlier one left behind. For both, the MOVNTDQA manual requires MFENCE (not LFENCE)
 * before rereading data that another agent writes.
 */
static inline void core_load_fence(void)
{
#if defined(__x86_64__)
	__builtin_ia32_mfence();
#elif defined(__aarch64__)
	__asm__ volatile("dmb oshld" ::: "memory");
#endif
}

/* Orders all earlier accesses before all later ones, across mappings of any type. */
static inline void core_full_fence(void)
{
#if defined(__x86_64__)
	__builtin_ia32_mfence();
#elif defined(__aarch64__)
	__asm__ volatile("dmb osh" ::: "memory");
#endif
}

#endif
