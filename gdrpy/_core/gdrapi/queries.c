/* SPDX-License-Identifier: MIT */
/* Queries of the library, of a gdr_t and of a pin. */
#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "exports.h"
#include "log.h"
#include "pins.h"

static_assert(sizeof(gdr_mh_t) == sizeof(unsigned long), "a handle is passed in a register");
static_assert(sizeof(struct gdr_info_v1) == 40, "what the older function writes");
static_assert(sizeof(gdr_info_v2_t) == 48, "what the newer function writes");
static_assert(offsetof(gdr_info_v2_t, va) == 0 && offsetof(gdr_info_v2_t, mapped_size) == 8 &&
		      offsetof(gdr_info_v2_t, page_size) == 16 &&
		      offsetof(gdr_info_v2_t, tm_cycles) == 24 &&
		      offsetof(gdr_info_v2_t, cycles_per_ms) == 32 &&
		      offsetof(gdr_info_v2_t, mapping_type) == 40,
	      "the layout that programs were compiled with");

int gdr_get_callback_flag(gdr_t g, gdr_mh_t handle, int *flag)
{
	struct core_pin *pin;
	int ret = core_pins_enter(g, handle.h, "gdr_get_callback_flag", &pin);

	if (ret)
		return ret;
	if (flag)
		*flag = core_memory_revoked(pin->memory);
	else
		ret = core_refuse_null("gdr_get_callback_flag", "flag");
	core_pins_leave(pin);
	return ret;
}

int gdr_get_info_v2(gdr_t g, gdr_mh_t handle, gdr_info_v2_t *info)
{
	struct core_pin *pin;
	int ret = core_pins_enter(g, handle.h, "gdr_get_info", &pin);

	if (ret)
		return ret;
	if (info) {
		enum core_mapping_kind kind = pin->mapping ? pin->kind : CORE_MAPPING_NONE;

		*info = (gdr_info_v2_t){
			.va = pin->memory->va,
			.mapped_size = pin->memory->nbytes,
			.page_size = pin->memory->page_size,
			.tm_cycles = pin->memory->pin_cycles,
			.cycles_per_ms = pin->memory->cycles_per_ms,
			.mapped = kind != CORE_MAPPING_NONE,
			.wc_mapping = kind == CORE_MAPPING_WC,
			.mapping_type = (gdr_mapping_type_t)kind,
		};
	} else {
		ret = core_refuse_null("gdr_get_info", "info");
	}
	core_pins_leave(pin);
	return ret;
}

int gdr_get_info(gdr_t g, gdr_mh_t handle, struct gdr_info_v1 *info)
{
	gdr_info_v2_t whole;
	int ret = gdr_get_info_v2(g, handle, info ? &whole : NULL);

	/* The newer structure begins like the older one. */
	if (!ret)
		memcpy(info, &whole, sizeof(*info));
	return ret;
}

void gdr_runtime_get_version(int *major, int *minor)
{
	if (major)
		*major = GDR_API_MAJOR_VERSION;
	if (minor)
		*minor = GDR_API_MINOR_VERSION;
}

int gdr_driver_get_version(gdr_t g, int *major, int *minor)
{
	int ret = core_session_enter(g, "gdr_driver_get_version");

	if (ret)
		return ret;
	if (!major || !minor) {
		ret = core_refuse_null("gdr_driver_get_version", major ? "minor" : "major");
	} else if (g->has_node) {
		*major = (int)(g->node.version >> MAJOR_VERSION_SHIFT);
		*minor = (int)(g->node.version & MINOR_VERSION_MASK);
	} else {
		gdr_runtime_get_version(major, minor);
	}
	core_session_leave(g);
	return ret;
}

/* -EINVAL for an unknown attribute. */
static int attribute(const struct gdr *session, gdr_attr_t attr)
{
	switch (attr) {
	case GDR_ATTR_USE_PERSISTENT_MAPPING:
		return core_pins_persist(session);
	case GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE:
		return core_can_force_pcie(session);
	case GDR_ATTR_USING_DMA_BUF_MMAP:
		return session->backend == &core_backend_dmabuf;
	default:
		return -EINVAL;
	}
}

int gdr_get_attribute(gdr_t g, gdr_attr_t attr, int *v)
{
	int ret = core_session_enter(g, "gdr_get_attribute");
	int value;

	if (ret)
		return ret;
	value = attribute(g, attr);
	if (!v)
		ret = core_refuse_null("gdr_get_attribute", "v");
	else if (value < 0)
		ret = core_refuse(EINVAL,
				  "gdr_get_attribute: there is no attribute %d: pass one of "
				  "gdr_attr_t",
				  (int)attr);
	else
		*v = value;
	core_session_leave(g);
	return ret;
}

int gdr_get_mapping_type_string(gdr_mapping_type_t mapping_type, const char **pstr)
{
	static const char *const names[] = {"None", "Write Combining", "Caching", "Device"};

	if (!pstr)
		return core_refuse_null("gdr_get_mapping_type_string", "pstr");
	if ((unsigned int)mapping_type >= GDR_MAPPING_TYPE_MAX)
		return core_refuse(EINVAL,
				   "gdr_get_mapping_type_string: there is no mapping type %d: pass "
				   "one of gdr_mapping_type_t",
				   (int)mapping_type);
	*pstr = names[mapping_type];
	return 0;
}
