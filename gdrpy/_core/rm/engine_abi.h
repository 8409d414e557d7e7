/* SPDX-License-Identifier: MIT */
/*
 * The part of the resource manager's interface that a channel of the copy engine needs.
 *
 * Parameters of an allocation are passed with size 0: the driver then takes the bytes that its own
 * structure has. They are padded with zeros beyond the largest structure known, and the offsets
 * used here are those of every release. Ioctls and controls contain their size: where it changed,
 * *_OLD_SIZE or an *_old structure is that of older drivers.
 */
#ifndef GDRPY_RM_ENGINE_ABI_H
#define GDRPY_RM_ENGINE_ABI_H

#include <linux/ioctl.h>
#include <stddef.h>
#include <stdint.h>

enum nvrm_engine_class {
	NVRM_CLASS_GPU_MEMORY = 0x40,
	NVRM_CLASS_VIRTUAL_MEMORY = 0x70,
	NVRM_CLASS_HOST_MEMORY = 0x71,
	NVRM_CLASS_EVENT = 0x79,
	NVRM_CLASS_ADDRESS_SPACE = 0x90f1,
	NVRM_CLASS_CHANNEL_GROUP = 0xa06c,
};

enum nvrm_engine_control {
	NVRM_CTRL_GET_CLASSES = 0x800201,
	NVRM_CTRL_GET_CE_CAPS = 0x20802a03,
	NVRM_CTRL_SCHEDULE = 0xa06f0103,
	NVRM_CTRL_BIND = 0xa06f0104,
	NVRM_CTRL_SCHEDULE_GROUP = 0xa06c0101,
	NVRM_CTRL_SET_TIME_SLICE = 0xa06c0103,
	NVRM_CTRL_GET_TOKEN = 0xc36f0108,
};

/* The number of a copy engine's type. The first ten follow each other, and so do the others. */
#define NVRM_ENGINES_MAX 20
#define NVRM_ENGINE_TYPE(index) ((index) < 10 ? 9u + (index) : 0x34u + (index) - 10)

struct nvrm_class_list {
	uint32_t count;
	uint32_t pad;
	uint64_t classes;
};

#define NVRM_CE_GRAPHICS 0x01 /* it shares the graphics engine's runlist */
#define NVRM_CE_SHARED 0x02

struct nvrm_ce_caps {
	uint32_t engine;
	uint8_t caps[2];
	uint8_t pad[2];
};

struct nvrm_virtual_memory_params {
	uint64_t offset;
	uint64_t limit; /* 0: all of the address space */
	uint32_t address_space;
	uint32_t pad;
};

/* Not contiguous, cached, and not mapped for the CPU by the driver. */
#define NVRM_HOST_MEMORY 0x40001010u
#define NVRM_HOST_MEMORY_READONLY (1u << 21)

struct nvrm_host_memory {
	uint32_t root;
	uint32_t parent;
	uint32_t object;
	uint32_t class_id;
	uint32_t flags;
	uint32_t pad0;
	uint64_t address; /* page-aligned */
	uint64_t limit;	  /* length - 1 */
	uint32_t status;
	uint32_t pad1;
	int32_t fd;
	uint32_t pad2;
};

#define NVRM_GPU_MEMORY_CONTIGUOUS_4K (2u << 27 | 1u << 23)

struct nvrm_gpu_memory_params {
	uint32_t owner;
	uint32_t pad0[5];
	uint32_t attributes;
	uint32_t pad1[9];
	uint64_t size;
	uint64_t alignment;
	uint64_t pad2[22];
};

#define NVRM_DMA_READONLY 1u
#define NVRM_DMA_SNOOPED 0x10u

struct nvrm_map_dma {
	uint32_t client;
	uint32_t device;
	uint32_t virtual_memory;
	uint32_t memory;
	uint64_t offset;
	uint64_t length;
	uint32_t flags;
	uint32_t flags2;
	uint32_t kind;
	uint32_t pad0;
	uint64_t va;
	uint32_t status;
	uint32_t pad1;
};

struct nvrm_map_dma_old { /* before 580 */
	uint32_t client;
	uint32_t device;
	uint32_t virtual_memory;
	uint32_t memory;
	uint64_t offset;
	uint64_t length;
	uint32_t flags;
	uint32_t pad0;
	uint64_t va;
	uint32_t status;
	uint32_t pad1;
};

struct nvrm_unmap_dma {
	uint32_t client;
	uint32_t device;
	uint32_t virtual_memory;
	uint32_t memory;
	uint32_t flags;
	uint32_t pad0;
	uint64_t va;
	uint64_t size; /* 0: all that was mapped there */
	uint32_t status;
	uint32_t pad1;
};

struct nvrm_unmap_dma_old { /* before 550 */
	uint32_t client;
	uint32_t device;
	uint32_t virtual_memory;
	uint32_t memory;
	uint32_t flags;
	uint32_t pad0;
	uint64_t va;
	uint32_t status;
	uint32_t pad1;
};

/* Of usermode classes from Hopper's on; older ones take no parameters. */
#define NVRM_USERMODE_WITH_PARAMS 0xc661u

struct nvrm_usermode_params {
	uint8_t bar1; /* map the doorbell through BAR1, not BAR0 */
	uint8_t privileged;
	uint8_t pad[62];
};

struct nvrm_group_params {
	uint32_t error_notifier;
	uint32_t pad0;
	uint32_t address_space;
	uint32_t engine;
	uint32_t pad1[60];
};

/* Without it, a privileged process's channel takes physical addresses. */
#define NVRM_CHANNEL_DENY_PHYSICAL (1u << 7)

struct nvrm_channel_params {
	uint32_t error_notifier;
	uint32_t buffer;
	uint64_t ring_va;
	uint32_t ring_entries;
	uint32_t flags;
	uint32_t context_share;
	uint32_t address_space; /* 0 in a group, which has it */
	uint32_t userd_memory[8];
	uint64_t userd_offset[8];
	uint32_t engine;
	uint32_t pad[95];
};

struct nvrm_copy_params {
	uint32_t version; /* 1: the next field is an engine's type */
	uint32_t engine;
	uint32_t pad[62];
};

#define NVRM_SCHEDULE_OLD_SIZE 2 /* before 575 */

struct nvrm_schedule {
	uint8_t enable;
	uint8_t skip_submit;
	uint8_t skip_enable;
};

/* The driver fills this in when a channel dies. `status` is 0 until then. */
struct nvrm_notification {
	uint64_t time;
	uint32_t xid;
	uint16_t engine;
	uint16_t status;
};

/* Makes a descriptor of a GPU's node one that poll() waits on. A poll takes the event away. */
struct nvrm_os_event {
	uint32_t client;
	uint32_t device;
	uint32_t fd;
	uint32_t status;
};

/* The interrupts of a launch by COPY<index>, from all processes; only the first ten have one. */
#define NVRM_NOTIFIERS_MAX 10
#define NVRM_NOTIFIER_INTERRUPT(index) ((23u + (index)) | 0x18000000u)

struct nvrm_event_params {
	uint32_t client;
	uint32_t source;
	uint32_t class_id;
	uint32_t index;
	uint64_t data; /* the descriptor */
};

#define NVRM_IOCTL_HOST_MEMORY _IOWR('F', 0x27, struct nvrm_host_memory)
#define NVRM_IOCTL_MAP_DMA _IOWR('F', 0x57, struct nvrm_map_dma)
#define NVRM_IOCTL_MAP_DMA_OLD _IOWR('F', 0x57, struct nvrm_map_dma_old)
#define NVRM_IOCTL_UNMAP_DMA _IOWR('F', 0x58, struct nvrm_unmap_dma)
#define NVRM_IOCTL_UNMAP_DMA_OLD _IOWR('F', 0x58, struct nvrm_unmap_dma_old)
#define NVRM_IOCTL_REGISTER_FD _IOWR('F', 201, int)
#define NVRM_IOCTL_OS_EVENT _IOWR('F', 206, struct nvrm_os_event)

_Static_assert(sizeof(struct nvrm_class_list) == 16, "class list");
_Static_assert(sizeof(struct nvrm_ce_caps) == 8, "copy engine capabilities");
_Static_assert(sizeof(struct nvrm_virtual_memory_params) == 24, "virtual memory");
_Static_assert(sizeof(struct nvrm_host_memory) == 56, "host memory");
_Static_assert(offsetof(struct nvrm_host_memory, address) == 24, "host memory");
_Static_assert(offsetof(struct nvrm_host_memory, fd) == 48, "host memory");
_Static_assert(offsetof(struct nvrm_gpu_memory_params, attributes) == 24, "GPU memory");
_Static_assert(offsetof(struct nvrm_gpu_memory_params, size) == 64, "GPU memory");
_Static_assert(offsetof(struct nvrm_gpu_memory_params, alignment) == 72, "GPU memory");
_Static_assert(sizeof(struct nvrm_map_dma) == 64, "map");
_Static_assert(offsetof(struct nvrm_map_dma, va) == 48, "map");
_Static_assert(sizeof(struct nvrm_map_dma_old) == 56, "map");
_Static_assert(offsetof(struct nvrm_map_dma_old, va) == 40, "map");
_Static_assert(sizeof(struct nvrm_unmap_dma) == 48, "unmap");
_Static_assert(offsetof(struct nvrm_unmap_dma, va) == 24, "unmap");
_Static_assert(sizeof(struct nvrm_unmap_dma_old) == 40, "unmap");
_Static_assert(offsetof(struct nvrm_group_params, engine) == 12, "group");
_Static_assert(offsetof(struct nvrm_channel_params, ring_va) == 8, "channel");
_Static_assert(offsetof(struct nvrm_channel_params, userd_memory) == 32, "channel");
_Static_assert(offsetof(struct nvrm_channel_params, userd_offset) == 64, "channel");
_Static_assert(offsetof(struct nvrm_channel_params, engine) == 128, "channel");
_Static_assert(sizeof(struct nvrm_channel_params) == 512, "channel");
_Static_assert(sizeof(struct nvrm_schedule) == 3, "schedule");
_Static_assert(sizeof(struct nvrm_os_event) == 16, "event");
_Static_assert(sizeof(struct nvrm_event_params) == 24, "event");
_Static_assert(sizeof(struct nvrm_notification) == 16, "notification");
_Static_assert(offsetof(struct nvrm_notification, status) == 14, "notification");

#endif
