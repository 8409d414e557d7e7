/* SPDX-License-Identifier: MIT */
/*
 * The interface of the NVIDIA kernel driver's resource manager (RM): the calls that CPU mappings of
 * GPU memory and channels of the copy engine need.
 *
 * Only the simulated RM uses these declarations. The code under test has separate ones, so that a
 * miscounted byte on either side is detected.
 */
#ifndef FAKERM_ABI_H
#define FAKERM_ABI_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define RM_IOCTL_TYPE 'F'

enum rm_call_number {
	RM_NR_USER_MEMORY = 0x27,
	RM_NR_FREE = 0x29,
	RM_NR_CONTROL = 0x2A,
	RM_NR_ALLOC = 0x2B,
	RM_NR_DUP_OBJECT = 0x34,
	RM_NR_MAP_MEMORY = 0x4E,
	RM_NR_UNMAP_MEMORY = 0x4F,
	RM_NR_MAP_DMA = 0x57,
	RM_NR_UNMAP_DMA = 0x58,
	RM_NR_CARD_INFO = 200,
	RM_NR_REGISTER_FD = 201,
	RM_NR_OS_EVENT = 206,
	RM_NR_FREE_OS_EVENT = 207,
	RM_NR_CHECK_VERSION = 210,
};

enum rm_status {
	RM_OK = 0,
	RM_INSERT_DUPLICATE_NAME = 0x19,
	RM_INSUFFICIENT_PERMISSIONS = 0x1B,
	RM_INVALID_ADDRESS = 0x1E,
	RM_INVALID_ARGUMENT = 0x1F,
	RM_INVALID_BASE = 0x20,
	RM_INVALID_CLASS = 0x22,
	RM_INVALID_CLIENT = 0x23,
	RM_INVALID_FLAGS = 0x29,
	RM_INVALID_LIMIT = 0x2E,
	RM_INVALID_OBJECT_HANDLE = 0x33,
	RM_INVALID_OBJECT_PARENT = 0x36,
	RM_INVALID_PARAMETER = 0x3B,
	RM_INVALID_STATE = 0x40,
	RM_NO_MEMORY = 0x51,
	RM_NOT_SUPPORTED = 0x56,
	RM_OBJECT_NOT_FOUND = 0x57,
	RM_OUT_OF_RANGE = 0x5B,
	RM_STATE_IN_USE = 0x63,
};

enum rm_class {
	RM_CLASS_LOCAL_MEMORY = 0x40,
	RM_CLASS_ROOT_CLIENT = 0x41,
	RM_CLASS_VIRTUAL = 0x70,
	RM_CLASS_USER_MEMORY = 0x71,
	RM_CLASS_EVENT = 0x79,
	RM_CLASS_DEVICE = 0x80,
	RM_CLASS_SUBDEVICE = 0x2080,
	RM_CLASS_ADDRESS_SPACE = 0x90F1,
	RM_CLASS_GROUP = 0xA06C,
	RM_CLASS_MIG_INSTANCE = 0xC637,
	RM_CLASS_USERMODE = 0xC661,
	RM_CLASS_CHANNEL = 0xC86F,
	RM_CLASS_COPY = 0xC8B5,
	RM_CLASS_CONFIDENTIAL = 0xCB33,
};

enum rm_control_command {
	RM_CMD_GPU_GET_ID_INFO = 0x205,
	RM_CMD_GET_EXPORT_OBJECT_INFO = 0x3D08,
	RM_CMD_IMPORT_OBJECTS_FROM_FD = 0x3D0C,
	RM_CMD_GET_SURFACE_INFO = 0x410110,
	RM_CMD_GET_VIRTUALIZATION = 0x800289,
	RM_CMD_GET_CONFIDENTIAL = 0xCB330101,
};

#define RM_ABI_SIZE(type, bytes) static_assert(sizeof(type) == (bytes), #type)
#define RM_ABI_FIELD(type, field, at) static_assert(offsetof(type, field) == (at), #type "." #field)

struct rm_alloc {
	uint32_t root;
	uint32_t parent;
	uint32_t new_handle;
	uint32_t class;
	uint64_t params;
	uint32_t params_size;
	uint32_t status;
};
RM_ABI_SIZE(struct rm_alloc, 32);
RM_ABI_FIELD(struct rm_alloc, params, 16);
RM_ABI_FIELD(struct rm_alloc, status, 28);

struct rm_alloc_with_rights {
	uint32_t root;
	uint32_t parent;
	uint32_t new_handle;
	uint32_t class;
	uint64_t params;
	uint64_t rights;
	uint32_t params_size;
	uint32_t flags;
	uint32_t status;
	uint32_t padding;
};
RM_ABI_SIZE(struct rm_alloc_with_rights, 48);
RM_ABI_FIELD(struct rm_alloc_with_rights, params_size, 32);
RM_ABI_FIELD(struct rm_alloc_with_rights, status, 40);

struct rm_device_params {
	uint32_t device_id;
	uint32_t client_share;
	uint32_t target_client;
	uint32_t target_device;
	uint32_t flags;
	uint32_t padding;
	uint64_t va_size;
	uint64_t va_start;
	uint64_t va_limit;
	uint32_t va_mode;
	uint32_t padding_end;
};
RM_ABI_SIZE(struct rm_device_params, 56);
RM_ABI_FIELD(struct rm_device_params, va_size, 24);
RM_ABI_FIELD(struct rm_device_params, va_mode, 48);

struct rm_mig_params {
	uint64_t capability;
	uint32_t instance;
	uint32_t padding;
};
RM_ABI_SIZE(struct rm_mig_params, 16);

struct rm_free {
	uint32_t root;
	uint32_t parent;
	uint32_t old;
	uint32_t status;
};
RM_ABI_SIZE(struct rm_free, 16);

struct rm_control {
	uint32_t client;
	uint32_t object;
	uint32_t command;
	uint32_t flags;
	uint64_t params;
	uint32_t params_size;
	uint32_t status;
};
RM_ABI_SIZE(struct rm_control, 32);
RM_ABI_FIELD(struct rm_control, params, 16);
RM_ABI_FIELD(struct rm_control, status, 28);

struct rm_dup_object {
	uint32_t client;
	uint32_t parent;
	uint32_t new_handle;
	uint32_t source_client;
	uint32_t source_object;
	uint32_t flags;
	uint32_t status;
};
RM_ABI_SIZE(struct rm_dup_object, 28);

struct rm_map_memory {
	uint32_t client;
	uint32_t device;
	uint32_t memory;
	uint32_t padding;
	uint64_t offset;
	uint64_t length;
	uint64_t linear;
	uint32_t status;
	uint32_t flags;
	int32_t fd;
	uint32_t padding_end;
};
RM_ABI_SIZE(struct rm_map_memory, 56);
RM_ABI_FIELD(struct rm_map_memory, offset, 16);
RM_ABI_FIELD(struct rm_map_memory, linear, 32);
RM_ABI_FIELD(struct rm_map_memory, fd, 48);

struct rm_unmap_memory {
	uint32_t client;
	uint32_t device;
	uint32_t memory;
	uint32_t padding;
	uint64_t linear;
	uint32_t status;
	uint32_t flags;
};
RM_ABI_SIZE(struct rm_unmap_memory, 32);
RM_ABI_FIELD(struct rm_unmap_memory, linear, 16);
RM_ABI_FIELD(struct rm_unmap_memory, flags, 28);

struct rm_card {
	uint8_t valid;
	uint32_t domain;
	uint8_t bus;
	uint8_t slot;
	uint8_t function;
	uint16_t vendor;
	uint16_t device;
	uint32_t gpu_id;
	uint16_t interrupt_line;
	uint64_t registers_address;
	uint64_t registers_size;
	uint64_t memory_address;
	uint64_t memory_size;
	uint32_t minor;
	uint8_t name[10];
};
RM_ABI_SIZE(struct rm_card, 72);
RM_ABI_FIELD(struct rm_card, domain, 4);
RM_ABI_FIELD(struct rm_card, bus, 8);
RM_ABI_FIELD(struct rm_card, slot, 9);
RM_ABI_FIELD(struct rm_card, gpu_id, 16);
RM_ABI_FIELD(struct rm_card, minor, 56);

#define RM_MAX_DEVICES 32

struct rm_card_info {
	struct rm_card cards[RM_MAX_DEVICES];
};

struct rm_version {
	uint32_t command;
	uint32_t reply;
	char text[64];
};
RM_ABI_SIZE(struct rm_version, 72);

#define RM_VERSION_QUERY '2'
#define RM_VERSION_RECOGNIZED 1

struct rm_gpu_id_info {
	uint32_t gpu_id;
	uint32_t flags;
	uint32_t device_instance;
	uint32_t subdevice_instance;
	uint32_t sli_status;
	uint32_t board_id;
	uint32_t gpu_instance;
	int32_t numa_id;
};
RM_ABI_SIZE(struct rm_gpu_id_info, 32);
RM_ABI_FIELD(struct rm_gpu_id_info, device_instance, 8);

/* The later fields moved when the MIG instance's number was added: releases.tsv has the offsets. */
struct rm_export_info {
	int32_t fd;
	uint32_t device_instance;
	uint8_t rest[72];
};
RM_ABI_SIZE(struct rm_export_info, 80);

struct rm_virtualization {
	uint32_t mode;
	uint32_t grid_build;
};

#define RM_VIRTUALIZATION_GUEST 2

struct rm_confidential {
	uint8_t cpu;
	uint8_t gpus;
	uint8_t environment;
	uint8_t feature;
	uint8_t developer_tools;
	uint8_t multi_gpu;
};
RM_ABI_SIZE(struct rm_confidential, 6);

#define RM_CONFIDENTIAL_HOPPER 2
#define RM_CONFIDENTIAL_PROTECTED_PCIE 1

#define RM_IMPORT_MAX 128
#define RM_IMPORT_VIDEO_MEMORY 1

struct rm_import_many {
	int32_t fd;
	uint32_t parent;
	uint32_t objects[RM_IMPORT_MAX];
	uint8_t types[RM_IMPORT_MAX];
	uint16_t count;
	uint16_t index;
};
RM_ABI_SIZE(struct rm_import_many, 652);
RM_ABI_FIELD(struct rm_import_many, objects, 8);
RM_ABI_FIELD(struct rm_import_many, types, 520);
RM_ABI_FIELD(struct rm_import_many, count, 648);

struct rm_os_event {
	uint32_t client;
	uint32_t device;
	uint32_t fd;
	uint32_t status;
};
RM_ABI_SIZE(struct rm_os_event, 16);

struct rm_user_memory {
	uint32_t root;
	uint32_t parent;
	uint32_t new_handle;
	uint32_t class;
	uint32_t flags;
	uint32_t padding;
	uint64_t address;
	uint64_t limit; /* the last byte's offset */
	uint32_t status;
	uint32_t padding_middle;
	int32_t fd;
	uint32_t padding_end;
};
RM_ABI_SIZE(struct rm_user_memory, 56);
RM_ABI_FIELD(struct rm_user_memory, address, 24);
RM_ABI_FIELD(struct rm_user_memory, status, 40);
RM_ABI_FIELD(struct rm_user_memory, fd, 48);

/* Bits of rm_user_memory's flags. */
#define RM_USER_MEMORY_LOCATION(flags) ((flags) >> 8 & 0xF)
#define RM_USER_MEMORY_COHERENCY(flags) ((flags) >> 12 & 0xF)
#define RM_USER_MEMORY_MAPPING(flags) ((flags) >> 30)
#define RM_USER_MEMORY_NO_MAP 1u
#define RM_USER_MEMORY_NONCONTIGUOUS (1u << 4)
#define RM_USER_MEMORY_READ_ONLY (1u << 21)
#define RM_USER_MEMORY_KNOWN_FLAGS                                                                 \
	(0xFu << 4 | 0xFu << 8 | 0xFu << 12 | RM_USER_MEMORY_READ_ONLY | 3u << 30)

#define RM_MAP_DMA_READ_ONLY 1u
#define RM_MAP_DMA_SNOOP (1u << 4)

struct rm_virtual_params {
	uint64_t offset;
	uint64_t limit;
	uint32_t address_space;
	uint32_t padding;
};
RM_ABI_SIZE(struct rm_virtual_params, 24);

struct rm_copy_params {
	uint32_t version;
	uint32_t engine;
};
RM_ABI_SIZE(struct rm_copy_params, 8);

struct rm_event_params {
	uint32_t client;
	uint32_t source;
	uint32_t class;
	uint32_t index;
	uint64_t data;
};
RM_ABI_SIZE(struct rm_event_params, 24);

#define RM_EVENT_NONSTALL_WITHOUT_DATA 0x18000000u

struct rm_class_list {
	uint32_t count;
	uint32_t padding;
	uint64_t list;
};
RM_ABI_SIZE(struct rm_class_list, 16);

struct rm_copy_caps {
	uint32_t engine;
	uint8_t caps[2];
	uint8_t padding[2];
};
RM_ABI_SIZE(struct rm_copy_caps, 8);

struct rm_notification {
	uint64_t time;
	uint32_t info32;
	uint16_t info16;
	uint16_t status;
};
RM_ABI_SIZE(struct rm_notification, 16);

#define RM_ENGINE_COPY0 9
#define RM_NOTIFIER_COPY0 23
#define RM_USERMODE_SIZE 0x10000
#define RM_USERMODE_DOORBELL 0x90
#define RM_USERD_SIZE 512
#define RM_USERD_GET 0x88
#define RM_USERD_PUT 0x8C

struct rm_surface_info {
	uint32_t count;
	uint32_t padding;
	uint64_t list;
};
RM_ABI_SIZE(struct rm_surface_info, 16);
RM_ABI_FIELD(struct rm_surface_info, list, 8);

enum rm_surface_index {
	RM_SURFACE_SIZE_LOW = 2,
	RM_SURFACE_SIZE_HIGH = 3,
	RM_SURFACE_SIZE_IN_4K = 7,
};

struct rm_surface_item {
	uint32_t index;
	uint32_t value;
};

#endif
