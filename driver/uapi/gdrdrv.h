/* SPDX-License-Identifier: MIT */
/*
 * The ABI of /dev/gdrdrv: the one description of it, for the module, the package and C users.
 *
 * Command numbers and layouts are those of NVIDIA's gdrdrv 2.6, so that libgdrapi and what is built
 * on it talk to either module. Some commands were declared there with a pointer where the structure
 * was meant: the size in their number is a pointer's, and they are marked so. A handle times the
 * CPU's page size is the offset to mmap; libgdrapi keeps handles in 32 bits.
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

/* Pins are rounded out to pages of the GPU. */
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

#endif
