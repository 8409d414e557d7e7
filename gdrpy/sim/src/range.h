/* SPDX-License-Identifier: MIT */
/*
 * Every range of addresses that the driver knows: device memory and pinned host memory.
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
	struct context *context; /* its owner; NULL for RANGE_MAPPED */
	bool sync_memops;
	void (*destroy)(struct range *range); /* frees the memory, not the range */

	/* device memory: */
	struct block *block;
	uint64_t block_offset;
	struct allocation *allocation;	       /* RANGE_MAPPED */
	unsigned char access[SIM_MAX_DEVICES]; /* RANGE_MAPPED: CU_MEM_ACCESS_FLAGS_... by device */
	unsigned int opens;		       /* RANGE_OPENED: how often */

	/* host memory: */
	unsigned int host_flags;
};

/* A new range, in which the caller fills in the fields of its kind; NULL without memory. */
struct range *range_new(enum range_kind kind, uint64_t start, uint64_t size);

/* Forgets the range, whose memory was already freed or never mapped. */
void range_drop(struct range *range);

/* The range that holds the address, or NULL. */
struct range *range_at(uint64_t address);

/* The range of that kind that begins there, or NULL. */
struct range *range_starting(uint64_t address, enum range_kind kind);

bool range_overlaps(uint64_t start, uint64_t size);

/* The first range at or after the address, by address; NULL at the end. */
struct range *range_next(uint64_t address);

bool range_is_host(const struct range *range);
uint64_t range_end(const struct range *range);

/* Destroys a range after all earlier work of its context, which may use it, is done. */
CUresult range_free(uint64_t start, enum range_kind kind);

/* Destroys all ranges of a context; waits only for running copies. */
void range_free_all(struct context *context);

#endif
