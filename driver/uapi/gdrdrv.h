/* SPDX-License-Identifier: MIT */
/*
 * The ABI of /dev/gdrdrv, for the module, the package and C users.
 *
 * Command numbers and layouts are those of NVIDIA's gdrdrv 2.6, so that libgdrapi and programs
 * built on it work with either module. NVIDIA declared some commands with a pointer instead of the
 * structure, so the size in their numbers is a pointer's: these have void * below. The offset to
 * mmap is a handle times the CPU's page size; libgdrapi keeps handles in 32 bits.
 */
#ifndef GDRDRV_UAPI_H
#define GDRDRV_UAPI_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define GDRDRV_NODE "/dev/gdrdrv"
#define GDRDRV_IOCTL_TYPE 0xDA

#define GDRDRV_VERSION(major, minor) (((major) << 16) | (minor))
#define GDRDRV_ABI_VERSION GDRDRV_VERSION(2, 6)
#define GDRDRV_MINIMUM_API_VERSION GDRDRV_VERSION(2, 0)

/* Pins are rounded out to GPU pages. */
#define GDRDRV_GPU_PAGE_SIZE 65536

enum gdrdrv_mapping_type {
	GDRDRV_MAPPING_NONE = 0,
	GDRDRV_MAPPING_WC = 1,
	GDRDRV_MAPPING_CACHED = 2,
	GDRDRV_MAPPING_DEVICE = 3,
};

enum gdrdrv_attribute {
	GDRDRV_ATTR_USE_PERSISTENT_MAPPING = 1,
	GDRDRV_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE = 2,
};

/* Flags of PIN_BUFFER_V2. */
#define GDRDRV_PIN_FLAG_FORCE_PCIE 1

struct gdrdrv_pin_buffer {
	__u64 addr;
	__u64 size;
	__u64 p2p_token;
	__u32 va_space;
	__u32 pad;
	__u64 handle; /* out */
};

struct gdrdrv_pin_buffer_v2 {
	__u64 addr;
	__u64 size;
	__u32 flags;
	__u32 pad;
	__u64 handle; /* out */
};

struct gdrdrv_unpin_buffer {
	__u64 handle;
};

struct gdrdrv_get_cb_flag {
	__u64 handle;
	__u32 flag; /* out: the GPU memory was freed, and the mapping revoked */
	__u32 pad;
};

struct gdrdrv_get_info {
	__u64 handle;
	__u64 va; /* from here on: out */
	__u64 mapped_size;
	__u32 page_size;
	__u32 tsc_khz;
	__u64 tm_cycles;
	__u32 mapped;
	__u32 wc_mapping;
};

struct gdrdrv_get_info_v2 {
	__u64 handle;
	__u64 va; /* from here on: out */
	__u64 mapped_size;
	__u32 page_size;
	__u32 tsc_khz;
	__u64 tm_cycles;
	__u32 mapping_type;
	__u32 pad;
};

struct gdrdrv_get_attr {
	__u32 attr;
	__u32 val; /* out */
};

struct gdrdrv_req_mapping_type {
	__u64 handle;
	__u32 mapping_type;
	__u32 pad;
};

struct gdrdrv_get_version {
	__u32 gdrdrv_version;	       /* out */
	__u32 minimum_gdr_api_version; /* out */
};

/*
 * Everything from here to the command numbers exists only in this module: FEATURES reports it. Each
 * structure begins with its size and flags; unknown sizes and flags are EINVAL.
 */

/* Bits of features. */
#define GDRDRV_FEATURE_PIN_V3 (1ull << 0)
#define GDRDRV_FEATURE_SHARE (1ull << 1)
#define GDRDRV_FEATURE_EVENTS (1ull << 2)
#define GDRDRV_FEATURE_FORCE_PCIE (1ull << 3)
#define GDRDRV_FEATURE_DEVICE_TYPE (1ull << 4)

struct gdrdrv_features {
	__u32 size;
	__u32 flags;	/* 0 */
	__u64 features; /* out */
};

/*
 * Flags of PIN_V3. Without PERSISTENT or REVOCABLE the module's default applies; both together are
 * EINVAL. A persistent pin keeps the GPU memory until it is unpinned, even if its owner frees it
 * earlier. A revocable pin ends when the memory is freed: an event reports it, and the next access
 * raises SIGBUS. With ZERO_AFTER, every page of the mapping instead shows one private page, which
 * is initially zero.
 */
#define GDRDRV_PIN_V3_PERSISTENT (1u << 0)
#define GDRDRV_PIN_V3_REVOCABLE (1u << 1)
#define GDRDRV_PIN_V3_ZERO_AFTER (1u << 2)
#define GDRDRV_PIN_V3_FORCE_PCIE (1u << 3) /* persistent pins only, else EOPNOTSUPP */

struct gdrdrv_pin_v3 {
	__u32 size;
	__u32 flags;
	__u64 addr;
	__u64 length;
	__u64 handle; /* out */
};

/*
 * The holder of a share fd may map any range of whole CPU pages of the pin, any number of times, up
 * to 16384 mappings of the pin in total (then ENOSPC). The offset to mmap is in bytes from info's
 * va, so a range may include other memory in the pin's first and last GPU page. The fd polls as
 * POLLHUP once the pin has ended: the GPU memory was freed, the pin unpinned, or the file that made
 * it closed. With RDONLY, not even mprotect makes a mapping writable. fstat() reports the pin's
 * size in bytes, fstatfs() the magic number in f_type.
 */
#define GDRDRV_SHARE_RDONLY (1u << 0)
#define GDRDRV_SHARE_MAGIC 0x67647264 /* "gdrd" */

struct gdrdrv_share {
	__u32 size;
	__u32 flags;
	__u64 handle;
	__s32 fd; /* out, close-on-exec */
	__u32 pad;
};

/*
 * read() on the node delivers whole events. Sequence numbers count the events of one open file from
 * 1, including those lost to a full queue. An OVERFLOW event after the queued ones reports how many
 * were lost, with the sequence number of the first.
 */
enum gdrdrv_event_kind {
	GDRDRV_EVENT_REVOKED = 1,
	GDRDRV_EVENT_OVERFLOW = 2,
};

struct gdrdrv_event {
	__u64 handle;
	__u64 sequence;
	__u32 kind;
	__u32 lost;
};

#define GDRDRV_IOCTL(number, argument) _IOWR(GDRDRV_IOCTL_TYPE, number, argument)

#define GDRDRV_IOC_PIN_BUFFER GDRDRV_IOCTL(0x01, struct gdrdrv_pin_buffer)
#define GDRDRV_IOC_UNPIN_BUFFER GDRDRV_IOCTL(0x02, void *)
#define GDRDRV_IOC_GET_CB_FLAG GDRDRV_IOCTL(0x03, void *)
#define GDRDRV_IOC_GET_INFO GDRDRV_IOCTL(0x04, void *)
#define GDRDRV_IOC_GET_INFO_V2 GDRDRV_IOCTL(0x05, void *)
#define GDRDRV_IOC_GET_ATTR GDRDRV_IOCTL(0x06, void *)
#define GDRDRV_IOC_PIN_BUFFER_V2 GDRDRV_IOCTL(0x07, struct gdrdrv_pin_buffer_v2)
#define GDRDRV_IOC_REQ_MAPPING_TYPE GDRDRV_IOCTL(0x08, void *)
#define GDRDRV_IOC_GET_VERSION GDRDRV_IOCTL(0xFF, void *)

#define GDRDRV_IOC_FEATURES GDRDRV_IOCTL(0x40, struct gdrdrv_features)
#define GDRDRV_IOC_PIN_V3 GDRDRV_IOCTL(0x41, struct gdrdrv_pin_v3)
#define GDRDRV_IOC_SHARE GDRDRV_IOCTL(0x42, struct gdrdrv_share)

#endif
