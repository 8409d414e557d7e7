/* SPDX-License-Identifier: MIT */
/*
 * A channel as its consumer sees it: fixed-size records in a ring, from one producer on the CPU to
 * one consumer on the GPU. And a link as its kernel sees it. For C, CUDA C++ and NVRTC;
 * docs/channel-protocol.md describes the protocols.
 */
#ifndef GDRPY_CHANNEL_H
#define GDRPY_CHANNEL_H

#include <gdrpy/inbox.h>

#define GDR_CHANNEL_MAGIC 0x4c4e414843524447ull /* "GDRCHANL" in memory */
#define GDR_CHANNEL_VERSION 1

/*
 * A kernel gets the address of this structure: 64 bytes in GPU memory, written once. Its addresses
 * are the GPU's, of the records and of 64-bit words that only one side stores. The counters count
 * all records ever and never wrap. Record i lies at records + i % capacity * record_nbytes.
 */
struct gdr_channel {
	unsigned long long magic;
	unsigned int version;
	unsigned int record_nbytes;  /* a multiple of 16 */
	unsigned long long capacity; /* in records, a power of two */
	unsigned long long records;  /* in GPU memory, aligned to 256 bytes */
	unsigned long long tail;     /* in GPU memory: how many records were pushed */
	unsigned long long closed;   /* in GPU memory: nonzero once no more will be */
	unsigned long long head;     /* in host memory: how many were taken */
	unsigned long long stopped;  /* in host memory: nonzero once no more will be */
};

#define GDR_LINK_MAGIC 0x4b4e494c50524447ull /* "GDRPLINK" in memory */
#define GDR_LINK_VERSION 1

/*
 * A link: requests from the CPU to one kernel, and its answers, in slots by their numbers. A kernel
 * gets the address of this structure: 96 bytes in GPU memory, written once. Its addresses are the
 * GPU's. A request is pushed when the answer to the one before it in its slot was received.
 *
 * Requests that fit a page of 4 KiB lie in two pages, of which each multiprocessor is nearer to
 * one: a kernel takes them from either.
 */
struct gdr_link {
	unsigned long long magic;
	unsigned int version;
	unsigned int unused;
	struct gdr_slots requests;  /* in GPU memory, aligned to 256 bytes */
	struct gdr_slots answers;   /* in host memory, as many */
	unsigned long long end;	    /* in GPU memory: 1 + all requests, once no more will come */
	unsigned long long taken;   /* in GPU memory: how many the server released, for the next */
	unsigned long long stopped; /* in host memory: nonzero once no more will be answered */
	unsigned long long twin;    /* the address of the requests' other copy, or of the same */
};

/*
 * Look once for a request, and load the slot's words of its first `count` times 16 bytes: 1, or 0
 * if they have not arrived; -1 at the end, where no request of that number will come.
 */
GDR_KERNEL int gdr_link_look(const struct gdr_link *link, unsigned long long number,
			     unsigned int count, unsigned long long *words)
{
	unsigned long long end = gdr_load(link->end);

	if (gdr_slot_load(&link->requests, number, 0, count, words))
		return 1;
	return end && number >= end - 1 ? -1 : 0;
}

#endif
