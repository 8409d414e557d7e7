/* SPDX-License-Identifier: MIT */
/*
 * The memory of the simulated GPUs: blocks that are memfds called gdrpy-sim-dev<N>, made by the
 * simulated CUDA driver (or a test). An exported allocation is a descriptor of its block.
 */
#ifndef FAKERM_MEMORY_H
#define FAKERM_MEMORY_H

#include <stddef.h>
#include <stdint.h>

struct memory {
	uint32_t device_instance;
	size_t size;
	void *hold; /* a mapping of the whole block: keeps it without taking a descriptor */
};

/* Which device the block behind a descriptor is on. Returns an RM status. */
uint32_t memory_device(int fd, uint32_t *device_instance);

/* Hold the block behind a descriptor. Returns an RM status. */
uint32_t memory_hold(int fd, struct memory *memory);

/*
 * Hold a block named by the words of a legacy IPC handle: a client that is the owner's pid with
 * IPC_CLIENT_BITS, and an object that is a descriptor number there. Returns an RM status.
 */
#define IPC_CLIENT_BITS 0xC1000000u
uint32_t memory_hold_by_ipc(uint32_t client, uint32_t object, struct memory *memory);

void memory_release(struct memory *memory);

/* What mmap would do with a range of the block. Returns MAP_FAILED and sets errno. */
void *memory_map(const struct memory *memory, void *address, size_t length, int prot, int flags,
		 size_t offset);

#endif
