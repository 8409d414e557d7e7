/* SPDX-License-Identifier: MIT */
#if defined(__aarch64__)

#include <arm_neon.h>

#include "copy/private.h"

/* Pairs of 16-byte registers: the widest accesses, which the CPU gathers into a line. */
static inline void neon_put_line(unsigned char *line, const unsigned char *host)
{
	uint8x16_t a = vld1q_u8(host);
	uint8x16_t b = vld1q_u8(host + 16);
	uint8x16_t c = vld1q_u8(host + 32);
	uint8x16_t d = vld1q_u8(host + 48);

	__asm__ volatile("stp %q1, %q2, [%0]\n\t"
			 "stp %q3, %q4, [%0, #32]"
			 :
			 : "r"(line), "w"(a), "w"(b), "w"(c), "w"(d)
			 : "memory");
}

static void neon_to_wc(void *mapping, const void *host, size_t nbytes)
{
	struct core_cursor at = {mapping, (unsigned char *)host, nbytes};

	CORE_HEAD(CORE_PUT, &at, core_u8);
	CORE_HEAD(CORE_PUT, &at, core_u16);
	CORE_HEAD(CORE_PUT, &at, core_u32);
	CORE_HEAD(CORE_PUT, &at, core_u64);
	while ((uintptr_t)at.mapping % CORE_LINE && at.left >= sizeof(uint8x16_t))
		CORE_PUT(&at, uint8x16_t);
	for (; at.left >= CORE_LINE; at.left -= CORE_LINE) {
		neon_put_line(at.mapping, at.host);
		at.mapping += CORE_LINE;
		at.host += CORE_LINE;
	}
	while (at.left >= sizeof(uint8x16_t))
		CORE_PUT(&at, uint8x16_t);
	CORE_TAIL(CORE_PUT, &at, core_u64);
	CORE_TAIL(CORE_PUT, &at, core_u32);
	CORE_TAIL(CORE_PUT, &at, core_u16);
	CORE_TAIL(CORE_PUT, &at, core_u8);
}

static inline void neon_load_line(void *to, const void *line)
{
	uint8x16_t a, b, c, d;
	unsigned char *out = to;

	__asm__ volatile("ldp %q0, %q1, [%4]\n\t"
			 "ldp %q2, %q3, [%4, #32]"
			 : "=w"(a), "=w"(b), "=w"(c), "=w"(d)
			 : "r"(line)
			 : "memory");
	vst1q_u8(out, a);
	vst1q_u8(out + 16, b);
	vst1q_u8(out + 32, c);
	vst1q_u8(out + 48, d);
}

static void neon_from_wc(void *host, const void *mapping, size_t nbytes)
{
	core_read_lines(host, mapping, nbytes, neon_load_line);
}

const struct core_copy_routine core_routines_to_wc[] = {
	{"neon", neon_to_wc, core_always_supported, SIZE_MAX},
	{"portable", core_portable_to_mapping, core_always_supported, SIZE_MAX},
	{NULL, NULL, NULL, 0},
};

const struct core_copy_routine core_routines_from_wc[] = {
	{"neon", neon_from_wc, core_always_supported, SIZE_MAX},
	{"portable", core_portable_from_mapping, core_always_supported, SIZE_MAX},
	{NULL, NULL, NULL, 0},
};

#endif
