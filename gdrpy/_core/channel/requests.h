/* SPDX-License-Identifier: MIT */
/*
 * A link's memory, and the CPU's end of it. The header that kernels include has their end;
 * docs/channel-protocol.md describes the protocol. The answers are read by gdr_slot_get().
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
/*
 * Two pages of 4 KiB whose addresses differ in that bit alone lie in different halves of the L2
 * cache of a GPU that has two. A ring that fits one of them has a copy in the other.
 */
#define CORE_LINK_REQUESTS 8192
#define CORE_LINK_PAGE 4096
#define CORE_LINK_NBYTES (CORE_LINK_REQUESTS + 2 * CORE_LINK_PAGE) /* without a larger ring */

/* Offsets in the host memory. */
#define CORE_LINK_STOPPED 0
#define CORE_LINK_PUSHED 64
#define CORE_LINK_ANSWERS 128
/* Of a named link alone. */
#define CORE_LINK_ACCEPTED 72 /* the caller that the kernel's end has taken up */
#define CORE_LINK_BEGAN 80    /* the first request that this kernel's end was to take */
#define CORE_LINK_CLOSER 88   /* the caller that closed it last; 0 if another has begun */

struct core_requests {
	struct gdr_link link;	     /* its addresses are this process's */
	enum core_mapping_kind type; /* of the GPU memory's mapping */
	uint64_t pushed;
	unsigned long long *told; /* in host memory: the same, for the next caller */
};

/* Lay the link out in `memory` and `host`, this process's mappings; the slots' sizes are set. */
void core_requests_place(struct core_requests *requests, enum core_mapping_kind type, char *memory,
			 char *host);

/* The descriptor for kernels. The addresses are the GPU's. */
struct gdr_link core_requests_described(const struct core_requests *requests, uint64_t memory_ptr,
					uint64_t host_ptr);

/* Zero the words and slots, and write the descriptor for kernels. The addresses are the GPU's. */
void core_requests_begin(const struct core_requests *requests, char *memory, uint64_t memory_ptr,
			 uint64_t host_ptr);

/* Push a request, whose slot must be free: the answer to the one before it was received. */
void core_requests_push(struct core_requests *requests, const char *record);

/*
 * How many requests were pushed whole, the last perhaps by a caller that died before it told. If it
 * had stored one copy of it, the other is made.
 */
uint64_t core_requests_count(const struct core_requests *requests);

/* Tell the kernel that `pushed` requests were pushed, and no more follow. */
void core_requests_close(const struct core_requests *requests, uint64_t pushed);

/* Tell the kernel that more requests may follow. */
void core_requests_open(const struct core_requests *requests);

/*
 * Remove the part of the request that is next, which a caller that died may have left, and its
 * answer: a kernel that loads less than whole requests may have taken it. The request before in its
 * slot stays, which may still be taken. No kernel may look at them meanwhile.
 */
void core_requests_clear_next(const struct core_requests *requests);

/*
 * Have the next server begin after the last request that the one before has answered, or released,
 * and return that number. Parts of later answers are removed. The server before must be gone.
 */
uint64_t core_requests_take_over(const struct core_requests *requests);

/* Whether the kernel has told that it answers no more. */
bool core_requests_stopped(const struct core_requests *requests);

#endif
