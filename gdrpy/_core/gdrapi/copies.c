/* SPDX-License-Identifier: MIT */
/* The copies, which take no lock: finding the mapping is a few loads. */
#include <errno.h>

#include "copy/copy.h"
#include "exports.h"
#include "log.h"
#include "pins.h"

/* Whether `size` bytes can be copied between an address of the mapping and host memory. */
static inline bool fits(const struct core_pin *pin, const void *address, const void *host,
			size_t size)
{
	uintptr_t mapping = pin ? pin->mapping : 0;
	size_t length = pin ? pin->length : 0;
	uintptr_t offset = (uintptr_t)address - mapping;

	return mapping && pin->generation == core_generation &&
	       (size == 0 || (host && offset <= length && size <= length - offset &&
			      !core_overlap(address, size, host, size)));
}

/* Log why fits() failed, and return the errno. */
static __attribute__((noinline, cold)) int refuse(const struct core_pin *pin, gdr_mh_t handle,
						  const void *address, const void *host,
						  size_t size, const char *call)
{
	if (!pin || pin->generation != core_generation)
		return core_pins_check(pin, handle.h, call);
	if (!pin->mapping)
		return core_refuse(EINVAL, "%s: handle %#lx is not mapped: call gdr_map() first",
				   call, handle.h);
	if (host && core_overlap(address, size, host, size))
		return core_refuse(EINVAL,
				   "%s: %zu bytes at %p and at %p overlap: copy through memory "
				   "outside the mapping",
				   call, size, address, host);
	return core_refuse(EINVAL,
			   "%s: %zu bytes at %p, host memory at %p: the mapping of handle %#lx has "
			   "%zu bytes at %#lx",
			   call, size, address, host, handle.h, (size_t)pin->length,
			   (unsigned long)pin->mapping);
}

int gdr_copy_to_mapping(gdr_mh_t handle, void *map_d_ptr, const void *h_ptr, size_t size)
{
	struct core_pin *pin = core_pins_find(handle.h);

	if (!fits(pin, map_d_ptr, h_ptr, size))
		return refuse(pin, handle, map_d_ptr, h_ptr, size, "gdr_copy_to_mapping");
	if (size == 0)
		return 0;
	core_copy_to(pin->kind, map_d_ptr, h_ptr, size);
	core_store_fence();
	if (core_mappings_mixed)
		core_full_fence();
	return 0;
}

int gdr_copy_from_mapping(gdr_mh_t handle, void *h_ptr, const void *map_d_ptr, size_t size)
{
	struct core_pin *pin = core_pins_find(handle.h);

	if (!fits(pin, map_d_ptr, h_ptr, size))
		return refuse(pin, handle, map_d_ptr, h_ptr, size, "gdr_copy_from_mapping");
	if (size == 0)
		return 0;
	core_copy_from(pin->kind, h_ptr, map_d_ptr, size);
	if (core_mappings_mixed)
		core_full_fence();
	return 0;
}
