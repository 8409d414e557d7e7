/* SPDX-License-Identifier: MIT */
/*
 * libgdrapi: load and store GPU memory from the CPU, without a kernel module where the NVIDIA
 * driver is enough. Interface and ABI are those of version 2.6 of NVIDIA's library of this name.
 *
 *	gdr_t gdr = gdr_open();
 *	gdr_mh_t pin;
 *	gdr_info_t info;
 *	void *mapping;
 *
 *	gdr_pin_buffer(gdr, device_pointer, size, 0, 0, &pin);
 *	gdr_get_info(gdr, pin, &info);
 *	gdr_map(gdr, pin, &mapping, info.mapped_size);
 *	gdr_copy_to_mapping(pin, (char *)mapping + (device_pointer - info.va), bytes, size);
 *
 * Sizes and offsets are in bytes, addresses of GPU memory are those of this process's CUDA.
 *
 * Errors. A function that returns an int returns 0, or the errno that says why nothing was done:
 * EINVAL for whatever the caller passed that cannot be (NULL, a handle that was never given out or
 * is no more, a range outside), EACCES in a child of the process that made the object (fork), and
 * what the system or the driver answered otherwise. GDRCOPY_ENABLE_LOGGING in the environment, set
 * to anything, has the library tell on stderr what failed and what to do about it; with it
 * GDRCOPY_LOG_LEVEL from 1 (everything) to 4 (errors alone, the default) chooses how much. The
 * level alone has it tell nothing. gdr_open() reads both.
 *
 * Threads may call every function at any time, on the same objects too. What they must agree on is
 * the lifetime of a mapping: none may copy through one that another takes away meanwhile.
 *
 * Ownership. A gdr_t owns its pins, and a pin owns its mapping: gdr_close() ends what is left. The
 * GPU memory itself stays its owner's, who should free it after the pin. Where pins are persistent
 * (GDR_ATTR_USE_PERSISTENT_MAPPING) they keep the memory until they end, even if it is freed
 * before.
 *
 * A way of mapping GPU memory is chosen for each pin: the module gdrdrv, the dma-buf of CUDA 13.3,
 * or the NVIDIA driver itself. GDRPY_BACKEND=gdrdrv, dmabuf, nvrm or sim forces one, and
 * GDRCOPY_USE_DMABUF_MMAP=1 forces dmabuf where GDRPY_BACKEND is not set. The library neither loads
 * nor initializes CUDA: the program has done so when it pins its first pointer.
 */
#ifndef GDRAPI_H
#define GDRAPI_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

/* Versions as one number: the major half above, the minor half below. */
#define MAJOR_VERSION_SHIFT 16
#define MINOR_VERSION_MASK (((uint32_t)1 << MAJOR_VERSION_SHIFT) - 1)

/* Of this interface. */
#define GDR_API_MAJOR_VERSION 2
#define GDR_API_MINOR_VERSION 6
#define GDR_API_VERSION ((GDR_API_MAJOR_VERSION << MAJOR_VERSION_SHIFT) | GDR_API_MINOR_VERSION)

/* Of the oldest kernel module that will do. */
#define MINIMUM_GDRDRV_MAJOR_VERSION 2
#define MINIMUM_GDRDRV_MINOR_VERSION 0
#define MINIMUM_GDRDRV_VERSION                                                                     \
	((MINIMUM_GDRDRV_MAJOR_VERSION << MAJOR_VERSION_SHIFT) | MINIMUM_GDRDRV_MINOR_VERSION)

/* Pages of the GPU, which pins are rounded out to: 64 KiB. */
#define GPU_PAGE_SHIFT 16
#define GPU_PAGE_SIZE (1UL << GPU_PAGE_SHIFT)
#define GPU_PAGE_OFFSET (GPU_PAGE_SIZE - 1)
#define GPU_PAGE_MASK (~GPU_PAGE_OFFSET)

#ifdef __cplusplus
extern "C" {
#endif

/* A connection to the library. */
typedef struct gdr *gdr_t;

/* A pin, by number: copies of it are the same pin. */
typedef struct gdr_mh_s {
	unsigned long h;
} gdr_mh_t;

/* How the CPU sees the pages of a mapping. */
typedef enum gdr_mapping_type {
	GDR_MAPPING_TYPE_NONE = 0,    /* nothing is mapped */
	GDR_MAPPING_TYPE_WC = 1,      /* write-combined: stores are fast, loads slow */
	GDR_MAPPING_TYPE_CACHING = 2, /* as ordinary memory, where the GPU is coherent */
	GDR_MAPPING_TYPE_DEVICE = 3,  /* accesses neither merged nor torn, aligned ones only */
	GDR_MAPPING_TYPE_MAX
} gdr_mapping_type_t;

/* For gdr_pin_buffer_v2(). */
typedef enum gdr_pin_flags {
	GDR_PIN_FLAG_DEFAULT = 0,
	GDR_PIN_FLAG_FORCE_PCIE = 1 /* through BAR1 also where GPU and CPU are coherent */
} gdr_pin_flags_t;

/* For gdr_map_v2(): what fits, or this type and no other. */
typedef enum gdr_map_flags {
	GDR_MAP_FLAG_DEFAULT = 0,
	GDR_MAP_FLAG_REQ_WC_MAPPING = 1,
	GDR_MAP_FLAG_REQ_CACHE_MAPPING = 2,
	GDR_MAP_FLAG_REQ_DEVICE_MAPPING = 3
} gdr_map_flags_t;

/* For gdr_get_attribute(). */
typedef enum gdr_attr {
	GDR_ATTR_USE_PERSISTENT_MAPPING = 1,	  /* pins keep memory that its owner frees */
	GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE = 2, /* the flag may be tried */
	GDR_ATTR_USING_DMA_BUF_MMAP = 3,	  /* pins are dma-bufs */
	GDR_ATTR_MAX
} gdr_attr_t;

/* What gdr_get_info() tells of a pin. */
typedef struct gdr_info_v2 {
	uint64_t va; /* GPU address where it begins: at or before the one that was asked for */
	uint64_t mapped_size;	/* that can be mapped from there on */
	uint32_t page_size;	/* that va and mapped_size are multiples of */
	uint64_t tm_cycles;	/* the CPU's counter when it was pinned; 0 if that is not known */
	uint32_t cycles_per_ms; /* of that counter */
	unsigned mapped : 1;
	unsigned wc_mapping : 1;
	gdr_mapping_type_t mapping_type;
} gdr_info_v2_t;

typedef gdr_info_v2_t gdr_info_t;

/*
 * Begin and end. gdr_open() is NULL where no GPU memory can be mapped on this machine, which it
 * tries where CUDA is initialized; the log says why for each way of doing it. gdr_close() ends the
 * pins that are left. In a child (fork) it gives back the child's copies of what the gdr_t holds,
 * and nothing of the parent's.
 */
gdr_t gdr_open(void);
int gdr_close(gdr_t g);

/*
 * Make a range of GPU memory ready to be mapped: at least 1 byte, at any alignment, inside of one
 * allocation. The pin is rounded out to whole pages, so it may include neighbours.
 *
 * EINVAL: what is at addr is no GPU memory of this process, or cannot be mapped; the range runs
 * past the allocation; a flag that is not known, or not to the module. 524, the kernel's ENOTSUPP:
 * PCIe cannot be forced here, pin without the flag. ENOMEM: the GPU's BAR1, a quota or this process
 * has no room left. The tokens are a relic, and are ignored.
 */
int gdr_pin_buffer(gdr_t g, unsigned long addr, size_t size, uint64_t p2p_token, uint32_t va_space,
		   gdr_mh_t *handle);
int gdr_pin_buffer_v2(gdr_t g, unsigned long addr, size_t size, uint32_t flags, gdr_mh_t *handle);

/* End a pin, and its mapping first if there still is one. */
int gdr_unpin_buffer(gdr_t g, gdr_mh_t handle);

/* *flag is 1 once the GPU memory was freed under a pin that does not keep it, else 0. */
int gdr_get_callback_flag(gdr_t g, gdr_mh_t handle, int *flag);

/* The name without a version in a binary is an older function, whose structure ends before the
 * mapping's type. */
int gdr_get_info_v2(gdr_t g, gdr_mh_t handle, gdr_info_v2_t *info);
#define gdr_get_info gdr_get_info_v2

/*
 * Map size bytes of a pin from the address that was pinned on, and what the pin has before it: *va
 * is where info.va is, so add addr - info.va to find what was pinned at addr. Whole pages of the
 * CPU are taken, up to info.mapped_size. One mapping a pin. A child (fork) does not inherit it.
 *
 * EAGAIN: it is mapped already. EINVAL: size is 0 or more than info.mapped_size, or the memory
 * cannot be mapped as this type.
 */
int gdr_map(gdr_t g, gdr_mh_t handle, void **va, size_t size);
int gdr_map_v2(gdr_t g, gdr_mh_t handle, void **va, size_t size, int flags);

/*
 * Take away the whole mapping, which begins at va. EINVAL: va is neither what gdr_map() gave nor,
 * as some programs have it, the GPU address that was pinned.
 */
int gdr_unmap(gdr_t g, gdr_mh_t handle, void *va, size_t size);

/*
 * Copy into and out of the mapping of a pin, at any alignment, by the fastest way for its type and
 * the size; a naturally aligned word of 1, 2, 4 or 8 bytes is one access. A copy to the mapping is
 * on its way to the GPU when the function returns, and seen there before whatever is copied or
 * stored next. Neither waits for work of the GPU's. They take no lock. Size 0 does nothing.
 *
 * EINVAL: the pin is not mapped, the range leaves its mapping, or the host memory lies in the
 * mapping too and overlaps it.
 */
int gdr_copy_to_mapping(gdr_mh_t handle, void *map_d_ptr, const void *h_ptr, size_t size);
int gdr_copy_from_mapping(gdr_mh_t handle, void *h_ptr, const void *map_d_ptr, size_t size);

/* The interface's version, and that of the kernel module; without one it is the interface's too. */
void gdr_runtime_get_version(int *major, int *minor);
int gdr_driver_get_version(gdr_t g, int *major, int *minor);

/* Of the way that the last pin went, or before the first, that it is expected to go. */
int gdr_get_attribute(gdr_t g, gdr_attr_t attr, int *v);

/* A type's name, which lives as long as the library. */
int gdr_get_mapping_type_string(gdr_mapping_type_t mapping_type, const char **pstr);

#ifdef __cplusplus
}
#endif

#endif
