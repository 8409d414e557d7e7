/* SPDX-License-Identifier: MIT */
/* The copies, which take no lock: finding the mapping is a few loads. */
#include <errno.h>

#include "copy.h"
#include "exports.h"
#include "log.h"
#include "pins.h"

/* 0, or why not so many bytes can be copied between a mapping's address and host memory. */
static int check(const struct gdr_pin *pin, gdr_mh_t handle, const void *address, const void *host,
		 size_t size, const char *call)
{
	uintptr_t mapping = pin ? pin->mapping : 0;
	size_t length = pin ? pin->length : 0;
	uintptr_t offset = (uintptr_t)address - mapping;

	if (mapping && pin->generation == gdr_generation) {
		if (size == 0 || (host && offset <= length && size <= length - offset))
			return 0;
		return gdr_refuse(EINVAL,
				  "%s: %zu bytes at %p, host memory at %p: the mapping of handle "
				  "%#lx has %zu bytes at %#lx",
				  call, size, address, host, handle.h, length, mapping);
	}
	if (!pin || pin->generation != gdr_generation)
		return gdr_pins_check(pin, handle.h, call);
	return gdr_refuse(EINVAL, "%s: handle %#lx is not mapped: call gdr_map() first", call,
			  handle.h);
}

int gdr_copy_to_mapping(gdr_mh_t handle, void *map_d_ptr, const void *h_ptr, size_t size)
{
	struct gdr_pin *pin = gdr_pins_find(handle.h);
	int ret = check(pin, handle, map_d_ptr, h_ptr, size, "gdr_copy_to_mapping");

	if (ret || size == 0)
		return ret;
	gdr_copy_to(pin->kind, map_d_ptr, h_ptr, size);
	gdr_store_fence();
	if (gdr_mappings_mixed)
		gdr_full_fence();
	return 0;
}

int gdr_copy_from_mapping(gdr_mh_t handle, void *h_ptr, const void *map_d_ptr, size_t size)
{
	struct gdr_pin *pin = gdr_pins_find(handle.h);
	int ret = check(pin, handle, map_d_ptr, h_ptr, size, "gdr_copy_from_mapping");

	if (ret || size == 0)
		return ret;
	gdr_copy_from(pin->kind, h_ptr, map_d_ptr, size);
	if (gdr_mappings_mixed)
		gdr_full_fence();
	return 0;
}
