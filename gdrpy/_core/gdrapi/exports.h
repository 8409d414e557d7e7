/* SPDX-License-Identifier: MIT */
/* The functions that the library exports; everything else in it is hidden. */
#ifndef GDRAPI_EXPORTS_H
#define GDRAPI_EXPORTS_H

#pragma GCC visibility push(default)

#include "gdrapi.h"

/* The structure that gdr_get_info fills in for older binaries: 40 bytes. */
struct gdr_info_v1 {
	uint64_t va;
	uint64_t mapped_size;
	uint32_t page_size;
	uint64_t tm_cycles;
	uint32_t cycles_per_ms;
	unsigned mapped : 1;
	unsigned wc_mapping : 1;
};

#undef gdr_get_info
int gdr_get_info(gdr_t g, gdr_mh_t handle, struct gdr_info_v1 *info);

#pragma GCC visibility pop

#endif
