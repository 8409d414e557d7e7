/* SPDX-License-Identifier: MIT */
/*
 * The method stream of a copy engine's channel: headers, each followed by the values of consecutive
 * methods. The methods are those of every copy class from Turing's on.
 */
#ifndef GDRPY_ENGINE_METHODS_H
#define GDRPY_ENGINE_METHODS_H

#include <stdint.h>

#define CORE_HOST_SUBCHANNEL 0u
#define CORE_COPY_SUBCHANNEL 4u

enum core_method {
	CORE_SET_OBJECT = 0x000,
	CORE_ACQUIRE = 0x05c,	    /* of the host: address low, high, payload low, high, how */
	CORE_SET_SEMAPHORE = 0x240, /* address high, low, payload */
	CORE_LAUNCH = 0x300,
	CORE_SET_SOURCE = 0x400, /* high, low, then CORE_SET_TARGET */
	CORE_SET_TARGET = 0x408, /* high, low, then the pitches, bytes of a line, lines */
	CORE_SET_LENGTH = 0x418,
	CORE_SET_FILL = 0x704, /* the value, and the elements that it makes up */
};

enum core_launch {
	CORE_LAUNCH_PIPELINED = 0x001, /* may overlap the launch before it */
	CORE_LAUNCH_IN_ORDER = 0x002,
	CORE_LAUNCH_FLUSH = 0x004, /* counts only with a semaphore */
	CORE_LAUNCH_SEMAPHORE = 0x008,
	CORE_LAUNCH_INTERRUPT = 0x040,
	CORE_LAUNCH_LINEAR = 0x180, /* both sides */
	CORE_LAUNCH_LINES = 0x200,
	CORE_LAUNCH_FILL = 0x400,
};

/*
 * Wait until a word is at least the payload, by the sign of the difference. Meanwhile the channels
 * of other groups run.
 */
#define CORE_ACQUIRE_AT_LEAST 0x00001003u

/* One element of one byte, or of four, each of which is the value. */
#define CORE_FILL_BYTES 0x00000005u
#define CORE_FILL_WORDS 0x00030005u

#define CORE_COPY_MOST (1u << 30) /* bytes of one launch */

static inline uint32_t core_method_header(uint32_t subchannel, uint32_t method, uint32_t count)
{
	return 0x20000000u | count << 16 | subchannel << 13 | method >> 2;
}

/* An entry of the ring: where a stream of methods is, and how many words it has. */
static inline uint64_t core_ring_entry(uint64_t va, uint32_t words)
{
	return va | (uint64_t)words << 42;
}

#define CORE_USERD_PUT 0x8c /* byte offset in a channel's USERD */
#define CORE_DOORBELL 0x90  /* byte offset in the usermode object */
#define CORE_DOORBELL_NBYTES 0x10000

#endif
