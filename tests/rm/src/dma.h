/* SPDX-License-Identifier: MIT */
/*
 * GPU virtual addresses: what RM_MAP_MEMORY_DMA gave out, and nothing else. An address space is the
 * device's own (0) or an object's; a range is not given out again before all others were.
 *
 * All calls with the ledger's lock held.
 */
#ifndef FAKERM_DMA_H
#define FAKERM_DMA_H

#include "ledger.h"
#include "nodes.h"

/* RM_MAP_MEMORY_DMA and RM_UNMAP_MEMORY_DMA, whose structures differ between releases. */
uint32_t serve_map_dma(const struct open_node *node, void *argument);
uint32_t serve_unmap_dma(const struct open_node *node, void *argument);

/*
 * The bytes at an address, and how many follow: at most *size. NULL where nothing is mapped, or
 * for a write to what is mapped for reading.
 */
void *dma_translate(const struct device *device, uint32_t address_space, uint64_t address,
		    bool write, uint64_t *size);

void dma_forget_memory(struct device *device, uint32_t memory);
void dma_forget_virtual(struct device *device, uint32_t dma);
int dma_count(const struct device *device);

#endif
