/* SPDX-License-Identifier: MIT */
/*
 * A channel as its consumer sees it: fixed-size records in a ring, from one producer on the CPU to
 * one consumer on the GPU. For C, CUDA C++ and NVRTC; docs/channel.md describes the protocol.
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

/*
 * A link as its kernel sees it: a channel of requests, and slots in host memory for the answers.
 * The answer to request i, the i-th record of the channel, is record i of the slots.
 */
struct gdr_link {
	struct gdr_channel requests;
	struct gdr_slots answers;
};

#endif
