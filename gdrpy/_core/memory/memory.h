/* SPDX-License-Identifier: MIT */
/*
 * GPU memory that a backend has taken into this process, and its mappings for the CPU.
 *
 * It is held until it is released, whatever its owner does meanwhile (a revocable pin excepted).
 * Threads may map and unmap one memory at once. A forked child may use nothing of its parent's.
 */
#ifndef GDRPY_MEMORY_H
#define GDRPY_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"
#include "copy/copy.h"
#include "memory/map.h"

struct core_backend;

/* A mapping: map.nbytes bytes at map.address. */
struct core_view {
	struct core_map map;
	enum core_mapping_kind kind;
	struct core_stretch *stretches; /* the library's own: one for each part that it lies in */
	unsigned int nstretches;
};

struct core_memory {
	const struct core_backend *backend;
	uint64_t va;	    /* GPU address of byte 0; 0 where it is not known */
	uint64_t nbytes;    /* that can be mapped */
	uint32_t page_size; /* bytes that such a pin is rounded out to */
	int device;	    /* CUDA ordinal; -1 where it is not known */
	char location[40];  /* on which GPU, in words */
	bool persistent;    /* kept even when its owner frees it */

	/* Of a pin of the kernel module; 0 for other memory. */
	uint64_t handle;
	uint64_t pin_cycles; /* of the CPU's counter that pinning took: kept for old callers */
	uint32_t cycles_per_ms;

	/* The library's own. */
	const struct core_memory_functions *functions;
	enum core_mapping_kind kind; /* of its mappings */
	struct core_part *parts;
	unsigned int nparts;
};

/* All of these return 0, or -1 with *error filled in and nothing changed, unless they say more. */

/* Map a byte range that lies inside, at any offset. */
int core_memory_map(struct core_memory *memory, uint64_t offset, size_t nbytes, bool readonly,
		    struct core_view *view, struct core_error *error);
/* The view is gone in any case; -1 tells of a step that failed. */
int core_memory_unmap(struct core_memory *memory, struct core_view *view, struct core_error *error);

/* How the mappings from here on shall be cached; -1 where that cannot be. */
int core_memory_want(struct core_memory *memory, enum core_mapping_kind kind,
		     struct core_error *error);

/* Whether the GPU memory was freed under it. */
bool core_memory_revoked(struct core_memory *memory);

/* A new descriptor, closed on exec, by which any process may map it: >= 0, or -1. */
int core_memory_share(struct core_memory *memory, bool readonly, struct core_error *error);

/* Give it back and free it, whose views are all unmapped; -1 tells of a step that failed. */
int core_memory_release(struct core_memory *memory, struct core_error *error);

/* Free it in a forked child, where it is of no use, and its descriptors are closed. */
void core_memory_forget(struct core_memory *memory);

#endif
