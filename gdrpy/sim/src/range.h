/* SPDX-License-Identifier: MIT */
/*
 * Every range of addresses that the driver knows: device memory, and host memory that is pinned.
 * Ranges never overlap.
 */
#ifndef GDRPY_SIM_RANGE_H
#define GDRPY_SIM_RANGE_H

#include "block.h"
#include "sim.h"

enum range_kind {
	RANGE_ALLOCATED,  /* cuMemAlloc */
	RANGE_MAPPED,	  /* cuMemMap */
	RANGE_OPENED,	  /* cuIpcOpenMemHandle */
	RANGE_HOST,	  /* cuMemHostAlloc */
	RANGE_REGISTERED, /* cuMemHostRegister */
};

struct range {
	uint64_t start;
	uint64_t size;
	enum range_kind kind;
	uint64_t id;
	struct context *context; /* that it goes away with; NULL for RANGE_MAPPED */
	bool sync_memops;
	void (*destroy)(struct range *range); /* undo what made it, the range aside */

	/* device memory: */
	struct block *block;
	uint64_t block_offset;
	struct allocation *allocation;	       /* RANGE_MAPPED */
	unsigned char access[SIM_MAX_DEVICES]; /* RANGE_MAPPED: CU_MEM_ACCESS_FLAGS_... by device */
	unsigned int opens;		       /* RANGE_OPENED: how often */

	/* host memory: */
	unsigned int host_flags;
};

/* A new range, of which the caller fills in what its kind needs; NULL for want of memory. */
struct range *range_new(enum range_kind kind, uint64_t start, uint64_t size);

/* Forgets the range; what it stands for has been undone, or has never been done. */
void range_drop(struct range *range);

/* The range that holds the address, or NULL. */
struct range *range_at(uint64_t address);

/* The same, but only a range of that kind that begins there. */
struct range *range_starting(uint64_t address, enum range_kind kind);

bool range_overlaps(uint64_t start, uint64_t size);

/* The first range at or after the address, by address; NULL at the end. */
struct range *range_next(uint64_t address);

bool range_is_host(const struct range *range);
uint64_t range_end(const struct range *range);

/* Destroys it when all work that its context was given before, which may use it, is done. */
CUresult range_free(uint64_t start, enum range_kind kind);

/* Destroys all ranges of a context; only the copies that are running are waited for. */
void range_free_all(struct context *context);

#endif
