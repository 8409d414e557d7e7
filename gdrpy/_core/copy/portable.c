/* SPDX-License-Identifier: MIT */
#include "copy/private.h"

void gdr_portable_to_mapping(void *mapping, const void *host, size_t nbytes)
{
	struct gdr_cursor at = {mapping, (unsigned char *)host, nbytes};

	GDR_HEAD(GDR_PUT, &at, gdr_u8);
	GDR_HEAD(GDR_PUT, &at, gdr_u16);
	GDR_HEAD(GDR_PUT, &at, gdr_u32);
	while (at.left >= sizeof(gdr_u64))
		GDR_PUT(&at, gdr_u64);
	GDR_TAIL(GDR_PUT, &at, gdr_u32);
	GDR_TAIL(GDR_PUT, &at, gdr_u16);
	GDR_TAIL(GDR_PUT, &at, gdr_u8);
}

void gdr_portable_from_mapping(void *host, const void *mapping, size_t nbytes)
{
	struct gdr_cursor at = {(unsigned char *)mapping, host, nbytes};

	gdr_load_fence();
	GDR_HEAD(GDR_GET, &at, gdr_u8);
	GDR_HEAD(GDR_GET, &at, gdr_u16);
	GDR_HEAD(GDR_GET, &at, gdr_u32);
	while (at.left >= sizeof(gdr_u64))
		GDR_GET(&at, gdr_u64);
	GDR_TAIL(GDR_GET, &at, gdr_u32);
	GDR_TAIL(GDR_GET, &at, gdr_u16);
	GDR_TAIL(GDR_GET, &at, gdr_u8);
}

bool gdr_always_supported(void)
{
	return true;
}
