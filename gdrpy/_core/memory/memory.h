/* SPDX-License-Identifier: MIT */
/*
 * GPU memory that a backend has taken into this process, and its mappings for the CPU.
 *
 * The memory is held until it is released, even if its owner frees it (except for a revocable pin).
 * Threads may map and unmap the same memory concurrently. A forked child may not use it.
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
	struct core_stretch *stretches; /* internal: one for each part it covers */
	unsigned int nstretches;
};

struct core_memory {
	const struct core_backend *backend;
	uint64_t va;	    /* GPU address of byte 0, or 0 if unknown */
	uint64_t buffer_id; /* CUDA's, of the one allocation that was there then; 0 if unknown */
	uint64_t nbytes;    /* mappable bytes */
	uint32_t page_size; /* bytes; pins are rounded out to it */
	int device;	    /* CUDA ordinal, or -1 if unknown */
	char location[40];  /* the GPU, in words */
	bool persistent;    /* outlives a free by its owner */
	bool readonly;	    /* a pin that the GPU may only read */

	/* Set only for pins of the kernel module; otherwise 0. */
	uint64_t handle;
	uint64_t pin_cycles; /* CPU counter cycles that pinning took; kept for old callers */
	uint32_t cycles_per_ms;

	/* Internal. */
	const struct core_memory_functions *functions;
	enum core_mapping_kind kind; /* of its mappings */
	struct core_part *parts;
	unsigned int nparts;
};

/* Unless noted, these return 0, or -1 with *error filled in and nothing changed. */

/* Map a byte range inside the memory, at any offset. */
int core_memory_map(struct core_memory *memory, uint64_t offset, size_t nbytes, bool readonly,
		    struct core_view *view, struct core_error *error);
/* Always destroys the view; -1 reports that a step failed. */
int core_memory_unmap(struct core_memory *memory, struct core_view *view, struct core_error *error);

/* Set the caching of later mappings; -1 if the backend cannot provide it. */
int core_memory_want(struct core_memory *memory, enum core_mapping_kind kind,
		     struct core_error *error);

/* Whether the owner has freed the GPU memory. */
bool core_memory_revoked(struct core_memory *memory);

/* A new close-on-exec descriptor that any process can map: >= 0, or -1. */
int core_memory_share(struct core_memory *memory, bool readonly, struct core_error *error);

/* Release and free the memory. Its views must be unmapped. -1 reports that a step failed. */
int core_memory_release(struct core_memory *memory, struct core_error *error);

/* Free the structure of memory that holds nothing: in a forked child, its descriptors are closed.
 */
void core_memory_forget(struct core_memory *memory);

#endif
