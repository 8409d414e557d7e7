/* SPDX-License-Identifier: MIT */
/*
 * Copies by the GPU's DMA engine, complete on return. They do not wait for kernels: their streams
 * do not synchronize with the legacy default stream.
 *
 * DMA accesses page-locked memory directly. Other memory goes through page-locked staging buffers,
 * which are kept. A lane is a stream with two of them: one is filled while the other is in flight.
 * Several lanes, each run by one thread, share a large copy.
 */
#ifndef GDRPY_DMA_H
#define GDRPY_DMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"
#include "copy/rows.h"

#define CORE_LANES_MAX 8
#define CORE_STAGING_NBYTES (1 << 20)

struct core_dma;

/* Open the DMA engine of a context's device; NULL without memory or without a driver. */
struct core_dma *core_dma_open(void *context);

/* Whether the range begins and ends in page-locked memory that CUDA knows. */
bool core_dma_reaches(struct core_dma *dma, const void *host, size_t nbytes);

/* Copy by this many lanes, or directly if 0 (page-locked memory only); false with an error. */
bool core_dma_transfer(struct core_dma *dma, unsigned int lanes, uint64_t device, char *host,
		       size_t nbytes, bool to_gpu, struct core_error *error);

/*
 * Copy an array's rows to or from rows in device memory, the first at `device`. Unless `direct`,
 * the calling thread gathers or spreads them through staging.
 */
bool core_dma_transfer_rows(struct core_dma *dma, uint64_t device, const struct core_rows *rows,
			    bool direct, bool to_gpu, struct core_error *error);

#endif
