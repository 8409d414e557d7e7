/* SPDX-License-Identifier: MIT */
#include "copy/private.h"

void core_portable_to_mapping(void *mapping, const void *host, size_t nbytes)
{
	struct core_cursor at = {mapping, (unsigned char *)host, nbytes};

	CORE_HEAD(CORE_PUT, &at, core_u8);
	CORE_HEAD(CORE_PUT, &at, core_u16);
	CORE_HEAD(CORE_PUT, &at, core_u32);
	while (at.left >= sizeof(core_u64))
		CORE_PUT(&at, core_u64);
	CORE_TAIL(CORE_PUT, &at, core_u32);
	CORE_TAIL(CORE_PUT, &at, core_u16);
	CORE_TAIL(CORE_PUT, &at, core_u8);
}

void core_portable_from_mapping(void *host, const void *mapping, size_t nbytes)
{
	struct core_cursor at = {(unsigned char *)mapping, host, nbytes};

	core_load_fence();
	CORE_HEAD(CORE_GET, &at, core_u8);
	CORE_HEAD(CORE_GET, &at, core_u16);
	CORE_HEAD(CORE_GET, &at, core_u32);
	while (at.left >= sizeof(core_u64))
		CORE_GET(&at, core_u64);
	CORE_TAIL(CORE_GET, &at, core_u32);
	CORE_TAIL(CORE_GET, &at, core_u16);
	CORE_TAIL(CORE_GET, &at, core_u8);
}

bool core_always_supported(void)
{
	return true;
}
