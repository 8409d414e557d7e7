/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Tracepoints, built only with TRACEPOINTS=1: their registration needs GPL-only symbols, which a
 * module must not use beside the proprietary nvidia.ko. Otherwise the calls are empty.
 */
#ifdef GDRDRV_TRACEPOINTS

#undef TRACE_SYSTEM
#define TRACE_SYSTEM gdrdrv

#if !defined(GDRDRV_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define GDRDRV_TRACE_H

#include <linux/tracepoint.h>

#include "gdrdrv.h"

/* clang-format off */

DECLARE_EVENT_CLASS(gdrdrv_pin_class,
	TP_PROTO(const struct gdrdrv_pin *pin),
	TP_ARGS(pin),
	TP_STRUCT__entry(
		__field(pid_t, owner)
		__field(u32, handle)
		__field(u64, va)
		__field(u64, bytes)
		__field(bool, persistent)
	),
	TP_fast_assign(
		__entry->owner = pin->owner.tgid;
		__entry->handle = pin->handle;
		__entry->va = pin->pages.va;
		__entry->bytes = pin->pages.length;
		__entry->persistent = pin->pages.persistent;
	),
	TP_printk("owner=%d handle=%u va=%#llx bytes=%llu persistent=%d", __entry->owner,
		  __entry->handle, __entry->va, __entry->bytes, __entry->persistent)
);

DEFINE_EVENT(gdrdrv_pin_class, gdrdrv_pin,
	TP_PROTO(const struct gdrdrv_pin *pin),
	TP_ARGS(pin)
);

DEFINE_EVENT(gdrdrv_pin_class, gdrdrv_revoke,
	TP_PROTO(const struct gdrdrv_pin *pin),
	TP_ARGS(pin)
);

DEFINE_EVENT(gdrdrv_pin_class, gdrdrv_unpin,
	TP_PROTO(const struct gdrdrv_pin *pin),
	TP_ARGS(pin)
);

TRACE_EVENT(gdrdrv_map,
	TP_PROTO(const struct gdrdrv_pin *pin, const struct vm_area_struct *vma, u32 type),
	TP_ARGS(pin, vma, type),
	TP_STRUCT__entry(
		__field(pid_t, owner)
		__field(u32, handle)
		__field(u64, offset)
		__field(u64, bytes)
		__field(u32, type)
	),
	TP_fast_assign(
		__entry->owner = pin->owner.tgid;
		__entry->handle = pin->handle;
		__entry->offset = (u64)vma->vm_pgoff << PAGE_SHIFT;
		__entry->bytes = vma->vm_end - vma->vm_start;
		__entry->type = type;
	),
	TP_printk("owner=%d handle=%u offset=%llu bytes=%llu type=%s", __entry->owner,
		  __entry->handle, __entry->offset, __entry->bytes,
		  __print_symbolic(__entry->type,
				   { GDRDRV_MAPPING_WC, "write-combined" },
				   { GDRDRV_MAPPING_CACHED, "cached" },
				   { GDRDRV_MAPPING_DEVICE, "device" }))
);

/* clang-format on */

#endif /* GDRDRV_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>

#elif !defined(GDRDRV_TRACE_H)
#define GDRDRV_TRACE_H

#include "gdrdrv.h"

static inline void trace_gdrdrv_pin(const struct gdrdrv_pin *pin)
{
}

static inline void trace_gdrdrv_revoke(const struct gdrdrv_pin *pin)
{
}

static inline void trace_gdrdrv_unpin(const struct gdrdrv_pin *pin)
{
}

static inline void trace_gdrdrv_map(const struct gdrdrv_pin *pin, const struct vm_area_struct *vma,
				    u32 type)
{
}

#endif /* GDRDRV_TRACEPOINTS */
