/* SPDX-License-Identifier: MIT */
/*
 * The part of the NVIDIA resource manager's (RM) ioctl interface that CPU mappings need.
 *
 * Layouts and numbers are those of NVIDIA/open-gpu-kernel-modules, compared with every release from
 * CORE_RM_TESTED_MIN to CORE_RM_TESTED_MAX, which tests/rm/releases.tsv lists. Three structures
 * grew; older drivers take the first *_OLD_SIZE bytes. Each command contains the structure's size,
 * so a driver with another layout refuses the call instead of misreading it.
 */
#ifndef GDRPY_RM_ABI_H
#define GDRPY_RM_ABI_H

#include <linux/ioctl.h>
#include <stddef.h>
#include <stdint.h>

#define CORE_RM_TESTED_MIN "535.43.02"
#define CORE_RM_TESTED_MAX "595.45.04"

enum nvrm_class {
	NVRM_CLASS_ROOT_CLIENT = 0x41,
	NVRM_CLASS_DEVICE = 0x80,
	NVRM_CLASS_SUBDEVICE = 0x2080,
	NVRM_CLASS_INSTANCE = 0xc637, /* a subscription to a MIG instance */
	NVRM_CLASS_CONFIDENTIAL = 0xcb33,
};

enum nvrm_control_command {
	NVRM_CTRL_GPU_GET_ID_INFO_V2 = 0x205,
	NVRM_CTRL_GET_EXPORT_OBJECT_INFO = 0x3d08,
	NVRM_CTRL_IMPORT_OBJECTS_FROM_FD = 0x3d0c,
	NVRM_CTRL_GET_SURFACE_INFO = 0x410110,
	NVRM_CTRL_GET_VIRTUALIZATION = 0x800289,
	NVRM_CTRL_GET_CONFIDENTIAL = 0xcb330101,
};

enum nvrm_status {
	NVRM_STATUS_INSUFFICIENT_RESOURCES = 0x1a,
	NVRM_STATUS_INSUFFICIENT_PERMISSIONS = 0x1b,
	NVRM_STATUS_INVALID_ARGUMENT = 0x1f,
	NVRM_STATUS_INVALID_OBJECT_HANDLE = 0x33,
	NVRM_STATUS_INVALID_PARAMETER = 0x3b,
	NVRM_STATUS_NO_MEMORY = 0x51,
	NVRM_STATUS_NOT_SUPPORTED = 0x56,
	NVRM_STATUS_OBJECT_NOT_FOUND = 0x57,
};

#define NVRM_MAX_CARDS 32
#define NVRM_MAX_IMPORT 128
#define NVRM_OBJECT_VIDEO_MEMORY 1

struct nvrm_card_info {
	uint8_t valid;
	uint8_t pad0[3];
	uint32_t domain;
	uint8_t bus;
	uint8_t slot;
	uint8_t pad1[6];
	uint32_t gpu_id;
	uint8_t pad2[36];
	uint32_t minor;
	uint8_t pad3[12];
};

struct nvrm_card_list {
	struct nvrm_card_info card[NVRM_MAX_CARDS];
};

struct nvrm_alloc {
	uint32_t root;
	uint32_t parent;
	uint32_t object;
	uint32_t class_id;
	uint64_t params;
	uint32_t params_size;
	uint32_t status;
};

struct nvrm_device_params {
	uint32_t device_instance;
	uint32_t client_share;
	uint32_t target_client;
	uint32_t target_device;
	uint32_t flags;
	uint32_t pad0;
	uint64_t va_space_size;
	uint64_t va_start;
	uint64_t va_limit;
	uint32_t va_mode;
	uint32_t pad1;
};

struct nvrm_subdevice_params {
	uint32_t sub_device;
};

struct nvrm_instance_params {
	uint64_t capability; /* a descriptor of /dev/nvidia-caps/nvidia-cap<N> */
	uint32_t id;
	uint32_t pad;
};

struct nvrm_control {
	uint32_t client;
	uint32_t object;
	uint32_t command;
	uint32_t flags;
	uint64_t params;
	uint32_t params_size;
	uint32_t status;
};

struct nvrm_gpu_id_info {
	uint32_t gpu_id;
	uint32_t gpu_flags;
	uint32_t device_instance;
	uint32_t sub_device_instance;
	uint32_t sli_status;
	uint32_t board_id;
	uint32_t gpu_instance;
	int32_t numa_id;
};

#define NVRM_NO_INSTANCE 0xffffffffu
#define NVRM_EXPORT_INFO_OLD_SIZE 76 /* before 545.23.06: without gpu_instance */

struct nvrm_export_info {
	int32_t fd;
	uint32_t device_instance;
	uint32_t gpu_instance; /* MIG's */
	uint16_t max_objects;
	uint8_t metadata[64];
	uint8_t pad[2];
};

struct nvrm_import {
	int32_t fd;
	uint32_t parent;
	uint32_t objects[NVRM_MAX_IMPORT];
	uint8_t types[NVRM_MAX_IMPORT];
	uint16_t count;
	uint16_t index;
};

/* The only size index that all drivers know: 2 and 3 exist since 580.65.06. */
#define NVRM_SURFACE_SIZE 7
#define NVRM_SURFACE_SIZE_UNIT 4096

struct nvrm_surface_entry {
	uint32_t index;
	uint32_t value;
};

struct nvrm_surface_info {
	uint32_t count;
	uint32_t pad;
	uint64_t entries;
};

#define NVRM_CONFIDENTIAL_OLD_SIZE 5 /* before 550.40.07 */

struct nvrm_confidential {
	uint8_t cpu;
	uint8_t gpus;
	uint8_t environment;
	uint8_t feature; /* 0: off */
	uint8_t developer_tools;
	uint8_t multi_gpu; /* 0: none; in protected PCIe mode, `feature` is off */
};

#define NVRM_VIRTUALIZATION_OLD_SIZE 4 /* before 555.42.02 */
#define NVRM_VIRTUALIZATION_GUEST 2

struct nvrm_virtualization {
	uint32_t mode;
	uint8_t grid_build;
	uint8_t pad[3];
};

struct nvrm_dup {
	uint32_t client;
	uint32_t parent;
	uint32_t object;
	uint32_t source_client;
	uint32_t source_object;
	uint32_t flags;
	uint32_t status;
};

struct nvrm_map {
	uint32_t client;
	uint32_t device;
	uint32_t memory;
	uint32_t pad0;
	uint64_t offset;
	uint64_t length;
	uint64_t linear;
	uint32_t status;
	uint32_t flags;
	int32_t fd;
	uint32_t pad1;
};

struct nvrm_unmap {
	uint32_t client;
	uint32_t device;
	uint32_t memory;
	uint32_t pad;
	uint64_t linear;
	uint32_t status;
	uint32_t flags;
};

struct nvrm_free {
	uint32_t root;
	uint32_t parent;
	uint32_t object;
	uint32_t status;
};

#define NVRM_IOCTL_FREE _IOWR('F', 0x29, struct nvrm_free)
#define NVRM_IOCTL_CONTROL _IOWR('F', 0x2a, struct nvrm_control)
#define NVRM_IOCTL_ALLOC _IOWR('F', 0x2b, struct nvrm_alloc)
#define NVRM_IOCTL_DUP _IOWR('F', 0x34, struct nvrm_dup)
#define NVRM_IOCTL_MAP _IOWR('F', 0x4e, struct nvrm_map)
#define NVRM_IOCTL_UNMAP _IOWR('F', 0x4f, struct nvrm_unmap)
#define NVRM_IOCTL_CARD_INFO _IOWR('F', 200, struct nvrm_card_list)

_Static_assert(sizeof(struct nvrm_card_info) == 72, "card info");
_Static_assert(offsetof(struct nvrm_card_info, gpu_id) == 16, "card info");
_Static_assert(offsetof(struct nvrm_card_info, minor) == 56, "card info");
_Static_assert(sizeof(struct nvrm_alloc) == 32, "alloc");
_Static_assert(sizeof(struct nvrm_device_params) == 56, "device parameters");
_Static_assert(offsetof(struct nvrm_device_params, va_mode) == 48, "device parameters");
_Static_assert(sizeof(struct nvrm_subdevice_params) == 4, "subdevice parameters");
_Static_assert(sizeof(struct nvrm_instance_params) == 16, "instance parameters");
_Static_assert(sizeof(struct nvrm_control) == 32, "control");
_Static_assert(sizeof(struct nvrm_export_info) == 80, "export info");
_Static_assert(offsetof(struct nvrm_export_info, metadata) == 14, "export info");
_Static_assert(sizeof(struct nvrm_import) == 652, "import");
_Static_assert(offsetof(struct nvrm_import, types) == 520, "import");
_Static_assert(offsetof(struct nvrm_import, count) == 648, "import");
_Static_assert(sizeof(struct nvrm_surface_info) == 16, "surface info");
_Static_assert(sizeof(struct nvrm_confidential) == 6, "confidential computing");
_Static_assert(sizeof(struct nvrm_virtualization) == 8, "virtualization");
_Static_assert(sizeof(struct nvrm_dup) == 28, "dup");
_Static_assert(sizeof(struct nvrm_map) == 56, "map");
_Static_assert(offsetof(struct nvrm_map, fd) == 48, "map");
_Static_assert(sizeof(struct nvrm_unmap) == 32, "unmap");
_Static_assert(sizeof(struct nvrm_free) == 16, "free");

#endif
