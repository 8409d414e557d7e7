/* SPDX-License-Identifier: MIT */
/*
 * The memory of the simulated GPUs: blocks that are memfds called gdrpy-sim-dev<N>, made by the
 * simulated CUDA driver (or a test). An exported allocation is a descriptor of its block.
 */
#ifndef FAKERM_MEMORY_H
#define FAKERM_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum memory_kind {
	MEMORY_BLOCK,	 /* exported, or named by a legacy IPC handle */
	MEMORY_LOCAL,	 /* of the GPU, allocated in RM */
	MEMORY_USER,	 /* pages of the process */
	MEMORY_USERMODE, /* no memory: the page with the doorbell */
};

struct memory {
	enum memory_kind kind;
	bool read_only;
	bool unordered; /* stores to it may overtake stores to other memory */
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

/* Hold a block once more. Returns an RM status. */
uint32_t memory_hold_again(const struct memory *memory, struct memory *again);

/* New pages, shared by all mappings of them. Returns an RM status. */
uint32_t memory_new(enum memory_kind kind, uint32_t device_instance, size_t size,
		    struct memory *memory);

/* Hold pages of the process, as the kernel's get_user_pages does. Returns an RM status. */
uint32_t memory_of_user(uint64_t address, size_t size, bool read_only, struct memory *memory);

void memory_release(struct memory *memory);

/* What mmap would do with a range of the block. Returns MAP_FAILED and sets errno. */
void *memory_map(const struct memory *memory, void *address, size_t length, int prot, int flags,
		 size_t offset);

#endif
