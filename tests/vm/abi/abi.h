/* SPDX-License-Identifier: MIT */
/*
 * The ABI of /dev/gdrdrv as a table of plain numbers, written down apart from driver/uapi/gdrdrv.h,
 * which it checks: what libgdrapi was built with does not change when that header does.
 */
#ifndef ABI_H
#define ABI_H

#include <stdint.h>

#define ABI_PIN_BUFFER 0xC028DA01u
#define ABI_UNPIN_BUFFER 0xC008DA02u
#define ABI_GET_CB_FLAG 0xC008DA03u
#define ABI_GET_INFO 0xC008DA04u
#define ABI_GET_INFO_V2 0xC008DA05u
#define ABI_GET_ATTR 0xC008DA06u
#define ABI_PIN_BUFFER_V2 0xC020DA07u
#define ABI_REQ_MAPPING_TYPE 0xC008DA08u
#define ABI_GET_VERSION 0xC008DAFFu
/* This module's own. */
#define ABI_FEATURES 0xC010DA40u
#define ABI_PIN_V3 0xC020DA41u
#define ABI_SHARE 0xC018DA42u

enum {
	ABI_TYPE_NONE,
	ABI_TYPE_WC,
	ABI_TYPE_CACHED,
	ABI_TYPE_DEVICE
};
enum {
	ABI_ATTR_PERSISTENT = 1,
	ABI_ATTR_FORCE_PCIE = 2
};
enum {
	ABI_FORCE_PCIE = 1
};
enum {
	ABI_V3_PERSISTENT = 1,
	ABI_V3_REVOCABLE = 2,
	ABI_V3_ZERO_AFTER = 4,
	ABI_V3_FORCE_PCIE = 8
};
enum {
	ABI_READ_ONLY = 1
};
enum {
	ABI_REVOKED = 1,
	ABI_OVERFLOW = 2
};

struct abi_pin {
	uint64_t addr, size, p2p_token;
	uint32_t va_space, hole;
	uint64_t handle;
};

struct abi_pin_v2 {
	uint64_t addr, size;
	uint32_t flags, pad;
	uint64_t handle;
};

struct abi_unpin {
	uint64_t handle;
};

struct abi_cb_flag {
	uint64_t handle;
	uint32_t flag, hole;
};

struct abi_info {
	uint64_t handle, va, mapped_size;
	uint32_t page_size, tsc_khz;
	uint64_t tm_cycles;
	uint32_t mapped, wc_mapping;
};

struct abi_info_v2 {
	uint64_t handle, va, mapped_size;
	uint32_t page_size, tsc_khz;
	uint64_t tm_cycles;
	uint32_t mapping_type, hole;
};

struct abi_attr {
	uint32_t attr, val;
};

struct abi_req_mapping_type {
	uint64_t handle;
	uint32_t mapping_type, hole;
};

struct abi_version {
	uint32_t gdrdrv_version, minimum_gdr_api_version;
};

struct abi_features {
	uint32_t size, flags;
	uint64_t features;
};

struct abi_pin_v3 {
	uint32_t size, flags;
	uint64_t addr, length, handle;
};

struct abi_share {
	uint32_t size, flags;
	uint64_t handle;
	int32_t fd, pad;
};

struct abi_event {
	uint64_t handle, sequence;
	uint32_t kind, lost;
};

#endif
