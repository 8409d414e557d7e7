/* SPDX-License-Identifier: MIT */
/*
 * A channel, as its consumer finds it: fixed-size records in a ring, from one producer on the CPU
 * to one consumer on the GPU. For C, CUDA C++ and NVRTC; docs/channel.md has the protocol.
 */
#ifndef GDRPY_CHANNEL_H
#define GDRPY_CHANNEL_H

#define GDR_CHANNEL_MAGIC 0x4c4e414843524447ull /* "GDRCHANL" in memory */
#define GDR_CHANNEL_VERSION 1

/*
 * What a kernel is given the address of: 64 bytes in GPU memory, written once. Addresses are the
 * GPU's, and what they lead to are 64-bit words, each stored by one side alone. The counters count
 * all records ever, and never wrap; record i lies at records + i % capacity * record_nbytes.
 */
struct gdr_channel {
	unsigned long long magic;
	unsigned int version;
	unsigned int record_nbytes;  /* a multiple of 16 */
	unsigned long long capacity; /* in records, a power of two */
	unsigned long long records;  /* in GPU memory, aligned to 256 bytes */
	unsigned long long tail;     /* in GPU memory: how many records were pushed */
	unsigned long long closed;   /* in GPU memory: not 0 once no more will be */
	unsigned long long head;     /* in host memory: how many were taken */
	unsigned long long stopped;  /* in host memory: not 0 once no more will be */
};

#endif
