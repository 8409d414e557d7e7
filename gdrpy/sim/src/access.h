/* SPDX-License-Identifier: MIT */
/* Which memory a copy may touch, and which memory running copies are touching. */
#ifndef GDRPY_SIM_ACCESS_H
#define GDRPY_SIM_ACCESS_H

#include "sim.h"

struct span {
	uint64_t start;
	uint64_t size;
};

/*
 * Whether the device may read or write (CU_MEM_ACCESS_FLAGS_...) all of the span. Memory that the
 * driver does not know is ordinary host memory, allowed only if `pageable`.
 */
CUresult access_check(const struct device *device, struct span span, unsigned int rights,
		      bool pageable);

/* From begin to end the spans stay mapped, even while the lock is released. */
struct access {
	struct span destination;
	struct span source;
	struct access *next;
};

void access_begin(struct access *access);
void access_end(struct access *access);

/* Waits, with the lock released, until no running copy touches these addresses. */
void access_drain(uint64_t start, uint64_t size);

#endif
