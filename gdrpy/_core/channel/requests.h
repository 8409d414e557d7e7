/* SPDX-License-Identifier: MIT */
/*
 * A link's memory, and the CPU's end of it. The header that kernels include has their end;
 * docs/channel.md describes the protocol. The answers are read by gdr_slot_get().
 */
#ifndef GDRPY_CHANNEL_REQUESTS_H
#define GDRPY_CHANNEL_REQUESTS_H

#include <stdint.h>

#include "copy/copy.h"
#include "gdrpy/channel.h"

/* Offsets in the GPU memory: apart, because a kernel looks at the second while it stores the first.
 */
#define CORE_LINK_TAKEN 128
#define CORE_LINK_END 192
#define CORE_LINK_REQUESTS 256

/* Offsets in the host memory. */
#define CORE_LINK_STOPPED 0
#define CORE_LINK_ANSWERS 128

struct core_requests {
	struct gdr_link link;	     /* its addresses are this process's */
	enum core_mapping_kind type; /* of the GPU memory's mapping */
	uint64_t pushed;
};

/* Lay the link out in `memory` and `host`, this process's mappings; the slots' sizes are set. */
void core_requests_place(struct core_requests *requests, enum core_mapping_kind type, char *memory,
			 char *host);

/* Zero the words and slots, and write the descriptor for kernels. The addresses are the GPU's. */
void core_requests_begin(const struct core_requests *requests, char *memory, uint64_t memory_ptr,
			 uint64_t host_ptr);

/* Push a request, whose slot must be free: the answer to the one before it was received. */
void core_requests_push(struct core_requests *requests, const char *record);

/* Tell the kernel that no more requests follow. */
void core_requests_close(const struct core_requests *requests);

/* Whether the kernel has told that it answers no more. */
bool core_requests_stopped(const struct core_requests *requests);

#endif
