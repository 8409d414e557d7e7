/* SPDX-License-Identifier: MIT */
/*
 * The memory behind a physical block of device memory: a memory file, or in the QEMU bed memory of
 * a PCI device. Other processes can map it, and it outlives its owner. Its size is fixed. New
 * blocks are zero.
 */
#ifndef GDRPY_SIM_BACKING_H
#define GDRPY_SIM_BACKING_H

#include <stdint.h>

#include "cuda_abi.h"

struct backing {
	int fd;
	uint64_t size;
	int ordinal;	/* of the device */
	uint64_t inode; /* unique on this machine */
};

/* A kind of memory. A process uses one. */
struct backing_kind {
	/* The size is a multiple of the granularity. */
	CUresult (*create)(struct backing *backing, int ordinal, uint64_t size);
	/* The block behind an exported descriptor, which the caller keeps; its device may be
	 * absent. */
	CUresult (*import)(struct backing *backing, int fd);
	/* A new descriptor, or -1. */
	int (*export)(const struct backing *backing);
	/* A descriptor of the block behind another process's descriptor of this number, or -1. */
	int (*take)(uint32_t pid, uint32_t fd);
	/*
	 * Tell the module that pins device memory where it is, and that it is gone. NULL for memory
	 * that is not pinned.
	 */
	CUresult (*announce)(const struct backing *backing, uint64_t address);
	void (*withdraw)(const struct backing *backing, uint64_t address);
};

extern const struct backing_kind backing_memfd;
extern const struct backing_kind backing_bar;

const struct backing_kind *backing_kind(void);

/* Maps all of it at an address that the caller reserved, with a protection (PROT_...). */
CUresult backing_map(const struct backing *backing, uint64_t address, int protection);

/* Called before the mapping is removed. Pins of the memory lose it. */
void backing_unmap(const struct backing *backing, uint64_t address);

/* Existing mappings and exported descriptors keep the memory. */
void backing_destroy(struct backing *backing);

#endif
