/* SPDX-License-Identifier: MIT */
/* Open and close, pin and unpin, map and unmap: checks of arguments, and the calls behind them. */
#include <assert.h>
#include <errno.h>

#include "exports.h"
#include "log.h"
#include "pins.h"

static_assert((int)GDR_MAPPING_TYPE_WC == (int)CORE_MAPPING_WC &&
		      (int)GDR_MAPPING_TYPE_CACHING == (int)CORE_MAPPING_CACHED &&
		      (int)GDR_MAPPING_TYPE_DEVICE == (int)CORE_MAPPING_DEVICE,
	      "both number mapping types alike");

/*
 * The kernel's ENOTSUPP, which is not an errno of user space. NVIDIA's module returns it for
 * GDR_PIN_FLAG_FORCE_PCIE on hosts without coherent GPU memory, and its library passes it on.
 */
#define ENOTSUPP 524

gdr_t gdr_open(void)
{
	struct gdr *session;

	core_log_read_environment();
	session = core_session_open();
	if (!session) {
		core_log(CORE_LOG_ERROR, "gdr_open: this process is out of memory");
		return NULL;
	}
	if (core_choose(session))
		return session;
	gdr_close(session);
	return NULL;
}

int gdr_close(gdr_t g)
{
	int ret = core_session_begin_close(g);

	if (ret)
		return ret;
	ret = core_pins_end_all(g);
	core_session_finish_close(g);
	return ret;
}

/* Check the arguments of a pin: 0, or an errno with the error logged. */
static int check_pin(const struct gdr *session, const char *call, unsigned long addr, size_t size,
		     uint32_t flags, const gdr_mh_t *handle)
{
	if (!handle)
		return core_refuse_null(call, "handle");
	if (size == 0 || addr + size < addr)
		return core_refuse(EINVAL,
				   "%s: %zu bytes at %#lx are not a range: pass 1 byte or more",
				   call, size, addr);
	if (flags & ~(uint32_t)GDR_PIN_FLAG_FORCE_PCIE)
		return core_refuse(EINVAL,
				   "%s: flags %#x are not known: pass GDR_PIN_FLAG_DEFAULT or "
				   "GDR_PIN_FLAG_FORCE_PCIE",
				   call, flags);
	if (flags && !core_can_force_pcie(session))
		return core_refuse(EINVAL,
				   "%s: GDR_PIN_FLAG_FORCE_PCIE is not supported here: pass "
				   "GDR_PIN_FLAG_DEFAULT",
				   call);
	return 0;
}

/* Pin a checked range. The session has been entered. */
static int take(struct gdr *session, const char *call, unsigned long addr, size_t size,
		bool force_pcie, gdr_mh_t *handle)
{
	struct core_memory *memory;
	struct core_error error;
	int ret;

	memory = core_take_range(session, addr, size, force_pcie, &error);
	if (!memory)
		return core_refuse(force_pcie && error.failure == CORE_FAILED_UNAVAILABLE
					   ? ENOTSUPP
					   : error.number,
				   "%s: %s", call, error.message);
	core_log(CORE_LOG_DEBUG, "%s: %zu bytes at %#lx by %s on %s", call, size, addr,
		 memory->backend->name, memory->location);
	ret = core_pins_add(session, memory, addr, &handle->h);
	if (ret)
		core_memory_release(memory, &error);
	return ret;
}

static int pin(struct gdr *session, const char *call, unsigned long addr, size_t size,
	       uint32_t flags, gdr_mh_t *handle)
{
	int ret = core_session_enter(session, call);

	if (ret)
		return ret;
	ret = check_pin(session, call, addr, size, flags, handle);
	if (!ret)
		ret = take(session, call, addr, size, flags, handle);
	core_session_leave(session);
	return ret;
}

int gdr_pin_buffer(gdr_t g, unsigned long addr, size_t size, uint64_t p2p_token, uint32_t va_space,
		   gdr_mh_t *handle)
{
	(void)p2p_token;
	(void)va_space;
	return pin(g, "gdr_pin_buffer", addr, size, GDR_PIN_FLAG_DEFAULT, handle);
}

int gdr_pin_buffer_v2(gdr_t g, unsigned long addr, size_t size, uint32_t flags, gdr_mh_t *handle)
{
	return pin(g, "gdr_pin_buffer_v2", addr, size, flags, handle);
}

int gdr_unpin_buffer(gdr_t g, gdr_mh_t handle)
{
	struct core_pin *pin;
	int ret = core_pins_enter(g, handle.h, "gdr_unpin_buffer", &pin);

	if (ret)
		return ret;
	ret = core_pin_end(pin);
	core_session_leave(g);
	return ret;
}

/* Check the arguments of a mapping: 0, or an errno with the error logged. */
static int check_mapping(const struct core_pin *pin, void *const *va, size_t size, int flags)
{
	if (!va)
		return core_refuse_null("gdr_map", "va");
	if (flags < GDR_MAP_FLAG_DEFAULT || flags > GDR_MAP_FLAG_REQ_DEVICE_MAPPING)
		return core_refuse(EINVAL,
				   "gdr_map_v2: flags %d are not known: pass one of "
				   "gdr_map_flags_t",
				   flags);
	if (size == 0 || size > pin->memory->nbytes)
		return core_refuse(EINVAL,
				   "gdr_map: %zu bytes cannot be mapped: pass a size from 1 to the "
				   "%llu bytes of info.mapped_size",
				   size, (unsigned long long)pin->memory->nbytes);
	if (pin->mapping)
		return core_refuse(EAGAIN,
				   "gdr_map: the pin is already mapped: call gdr_unmap() first, "
				   "or pin the memory again");
	return 0;
}

int gdr_map_v2(gdr_t g, gdr_mh_t handle, void **va, size_t size, int flags)
{
	struct core_pin *pin;
	int ret = core_pins_enter(g, handle.h, "gdr_map", &pin);

	if (ret)
		return ret;
	ret = check_mapping(pin, va, size, flags);
	if (!ret)
		ret = core_pin_map(pin, size, (enum core_mapping_kind)flags);
	if (!ret)
		*va = (void *)pin->mapping;
	core_pins_leave(pin);
	return ret;
}

int gdr_map(gdr_t g, gdr_mh_t handle, void **va, size_t size)
{
	return gdr_map_v2(g, handle, va, size, GDR_MAP_FLAG_DEFAULT);
}

/* Whether `va` names the mapping: DPDK passes the GPU address. */
static bool names_mapping(const struct core_pin *pin, const void *va)
{
	return (uintptr_t)va == pin->mapping || (uintptr_t)va == pin->memory->va + pin->lead;
}

int gdr_unmap(gdr_t g, gdr_mh_t handle, void *va, size_t size)
{
	struct core_pin *pin;
	int ret = core_pins_enter(g, handle.h, "gdr_unmap", &pin);

	(void)size; /* a mapping is removed as a whole */
	if (ret)
		return ret;
	if (!pin->mapping)
		ret = core_refuse(EINVAL, "gdr_unmap: the pin is not mapped: call gdr_map() first");
	else if (!names_mapping(pin, va))
		ret = core_refuse(
			EINVAL,
			"gdr_unmap: the mapping begins at %#lx, not at %p: pass the address "
			"from gdr_map()",
			pin->mapping, va);
	else
		ret = core_pin_unmap(pin);
	core_pins_leave(pin);
	return ret;
}
