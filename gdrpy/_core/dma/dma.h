/* SPDX-License-Identifier: MIT */
/*
 * Copies by the GPU's DMA engine, done when they return. They wait for no kernels: their streams do
 * not synchronize with the legacy default stream.
 *
 * DMA reaches page-locked memory by itself. Other memory goes through page-locked staging buffers,
 * which are kept: a lane is a stream with two of them, so that one is filled while the other is on
 * its way, and several lanes, each with a thread of its own, share a large copy.
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

/* The DMA engine of a device whose context it is; NULL if memory or the driver is missing. */
struct core_dma *core_dma_open(void *context);

/* Whether all of it is page-locked memory that CUDA knows. */
bool core_dma_reaches(struct core_dma *dma, const void *host, size_t nbytes);

/* By that many lanes, 0 for page-locked memory; false with an error. */
bool core_dma_write(struct core_dma *dma, unsigned int lanes, uint64_t device, const void *host,
		    size_t nbytes, struct core_error *error);
bool core_dma_read(struct core_dma *dma, unsigned int lanes, void *host, uint64_t device,
		   size_t nbytes, struct core_error *error);

/* Rows of an array that DMA can take as they are, if it reaches their memory. */
bool core_dma_takes_rows(const struct core_rows *rows);

/*
 * Rows of an array to or from rows of the device's memory, where the first begins at `device`. Rows
 * that are not `direct` go through staging, gathered or spread by the calling thread.
 */
bool core_dma_write_rows(struct core_dma *dma, uint64_t device, const struct core_rows *rows,
			 bool direct, struct core_error *error);
bool core_dma_read_rows(struct core_dma *dma, const struct core_rows *rows, uint64_t device,
			bool direct, struct core_error *error);

#endif
