/* SPDX-License-Identifier: MIT */
/*
 * What a physical block of device memory is made of: a memory file, or in the QEMU bed memory of a
 * PCI device. Other processes can map it, it survives its owner's death, and nobody can change its
 * size. Fresh blocks are zero.
 */
#ifndef GDRPY_SIM_BACKING_H
#define GDRPY_SIM_BACKING_H

#include <stdint.h>

#include "cuda_abi.h"

struct backing {
	int fd;
	uint64_t size;
	int ordinal;	/* of the device */
	uint64_t inode; /* tells one block from every other on this machine */
};

/* The size is a multiple of the granularity. */
CUresult backing_create(struct backing *backing, int ordinal, uint64_t size);

/* The block behind a descriptor that another process, or this one, exported; it stays the caller's.
 */
CUresult backing_import(struct backing *backing, int fd);

/* A descriptor of its own, or -1. */
int backing_export(const struct backing *backing);

/* A descriptor of the block that another process has by this number, or -1. */
int backing_take(uint32_t pid, uint32_t fd);

/* All of it at an address that the caller reserved, accessible as `protection` (PROT_...) says. */
CUresult backing_map(const struct backing *backing, uint64_t address, int protection);

/* To be called before the mapping is taken away: whoever has pinned memory there loses it. */
void backing_unmap(const struct backing *backing, uint64_t address);

/* Existing mappings and exported descriptors keep the memory. */
void backing_destroy(struct backing *backing);

#endif
