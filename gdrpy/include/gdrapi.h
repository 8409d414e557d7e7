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
 * Sizes and offsets are in bytes. GPU addresses are those of CUDA in this process.
 *
 * Errors. A function that returns an int returns 0 or an errno: EINVAL for an invalid argument
 * (NULL, a handle that is unknown or has ended, a range outside), EACCES in a forked child of the
 * process that made the object, otherwise the errno of the system or the driver. If
 * GDRCOPY_ENABLE_LOGGING is in the environment, with any value, the library logs failures and
 * remedies on stderr. GDRCOPY_LOG_LEVEL then chooses how much, from 1 (everything) to 4 (errors
 * only, the default); it has no effect alone. gdr_open() reads both.
 *
 * Threads may call every function at any time, on the same objects too, but no thread may copy
 * through a mapping while another removes it.
 *
 * Ownership. A gdr_t owns its pins, and a pin owns its mapping: gdr_close() ends what is left. The
 * program owns the GPU memory and should free it after the pin. Persistent pins
 * (GDR_ATTR_USE_PERSISTENT_MAPPING) keep the memory until they end, even if it is freed earlier.
 *
 * The library chooses a backend for each pin: the module gdrdrv, the dma-buf of CUDA 13.3, or the
 * NVIDIA driver itself. GDRPY_BACKEND=gdrdrv, dmabuf, nvrm or sim forces one, and
 * GDRCOPY_USE_DMABUF_MMAP=1 forces dmabuf if GDRPY_BACKEND is not set. The library neither loads
 * nor initializes CUDA: the program must do so before it pins its first pointer.
 */
#ifndef GDRAPI_H
#define GDRAPI_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

/* Versions as one number: the major half above, the minor half below. */
#define MAJOR_VERSION_SHIFT 16
#define MINOR_VERSION_MASK (((uint32_t)1 << MAJOR_VERSION_SHIFT) - 1)

/* The version of this interface. */
#define GDR_API_MAJOR_VERSION 2
#define GDR_API_MINOR_VERSION 6
#define GDR_API_VERSION ((GDR_API_MAJOR_VERSION << MAJOR_VERSION_SHIFT) | GDR_API_MINOR_VERSION)

/* The version of the oldest supported kernel module. */
#define MINIMUM_GDRDRV_MAJOR_VERSION 2
#define MINIMUM_GDRDRV_MINOR_VERSION 0
#define MINIMUM_GDRDRV_VERSION                                                                     \
	((MINIMUM_GDRDRV_MAJOR_VERSION << MAJOR_VERSION_SHIFT) | MINIMUM_GDRDRV_MINOR_VERSION)

/* Pins are rounded out to GPU pages of 64 KiB. */
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

/* How the CPU caches the pages of a mapping. */
typedef enum gdr_mapping_type {
	GDR_MAPPING_TYPE_NONE = 0,    /* nothing is mapped */
	GDR_MAPPING_TYPE_WC = 1,      /* write-combined: stores are fast, loads slow */
	GDR_MAPPING_TYPE_CACHING = 2, /* like ordinary memory, on a coherent GPU */
	GDR_MAPPING_TYPE_DEVICE = 3,  /* aligned accesses only, never merged or torn */
	GDR_MAPPING_TYPE_MAX
} gdr_mapping_type_t;

/* For gdr_pin_buffer_v2(). */
typedef enum gdr_pin_flags {
	GDR_PIN_FLAG_DEFAULT = 0,
	GDR_PIN_FLAG_FORCE_PCIE = 1 /* through BAR1 even if GPU and CPU are coherent */
} gdr_pin_flags_t;

/* For gdr_map_v2(): the type that fits, or exactly this one. */
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

/* A pin, as gdr_get_info() reports it. */
typedef struct gdr_info_v2 {
	uint64_t va;		/* GPU address of the first byte: at or before the pinned address */
	uint64_t mapped_size;	/* mappable bytes from va on */
	uint32_t page_size;	/* va and mapped_size are multiples of it */
	uint64_t tm_cycles;	/* CPU counter cycles that pinning took; 0 if unknown */
	uint32_t cycles_per_ms; /* of that counter */
	unsigned mapped : 1;
	unsigned wc_mapping : 1;
	gdr_mapping_type_t mapping_type;
} gdr_info_v2_t;

typedef gdr_info_v2_t gdr_info_t;

/*
 * Open and close. gdr_open() returns NULL if GPU memory cannot be mapped on this machine, which it
 * tests if CUDA is initialized; the log gives the reason for each backend. gdr_close() ends the
 * remaining pins. In a forked child it releases only the child's copies.
 */
gdr_t gdr_open(void);
int gdr_close(gdr_t g);

/*
 * Pin a range of GPU memory for mapping: at least 1 byte, at any alignment, inside one allocation.
 * The pin is rounded out to whole pages, so it may include neighbours.
 *
 * EINVAL: addr is not GPU memory of this process, or cannot be mapped; the range runs past the
 * allocation; a flag is unknown, here or to the module. 524, the kernel's ENOTSUPP: PCIe cannot be
 * forced here, pin without the flag. ENOMEM: the GPU's BAR1, a quota or this process is out of
 * memory. p2p_token and va_space are obsolete and ignored.
 */
int gdr_pin_buffer(gdr_t g, unsigned long addr, size_t size, uint64_t p2p_token, uint32_t va_space,
		   gdr_mh_t *handle);
int gdr_pin_buffer_v2(gdr_t g, unsigned long addr, size_t size, uint32_t flags, gdr_mh_t *handle);

/* End a pin, after removing its mapping if it has one. */
int gdr_unpin_buffer(gdr_t g, gdr_mh_t handle);

/* *flag is 1 once the GPU memory of a revocable pin was freed, else 0. */
int gdr_get_callback_flag(gdr_t g, gdr_mh_t handle, int *flag);

/* In binaries, the name without a version is an older function, whose structure lacks the mapping's
 * type. */
int gdr_get_info_v2(gdr_t g, gdr_mh_t handle, gdr_info_v2_t *info);
#define gdr_get_info gdr_get_info_v2

/*
 * Map size bytes of a pin from the pinned address on, and the bytes of the pin before it. *va
 * corresponds to info.va: add addr - info.va to reach addr. The mapping covers whole CPU pages, up
 * to info.mapped_size. A pin has one mapping. A forked child does not inherit it.
 *
 * EAGAIN: the pin is already mapped. EINVAL: size is 0 or more than info.mapped_size, or the memory
 * cannot be mapped as this type.
 */
int gdr_map(gdr_t g, gdr_mh_t handle, void **va, size_t size);
int gdr_map_v2(gdr_t g, gdr_mh_t handle, void **va, size_t size, int flags);

/*
 * Remove the whole mapping. EINVAL: va is neither the address from gdr_map() nor the pinned GPU
 * address, which some programs pass.
 */
int gdr_unmap(gdr_t g, gdr_mh_t handle, void *va, size_t size);

/*
 * Copy into and out of a pin's mapping, at any alignment, with the fastest routine for its type and
 * the size. A naturally aligned word of 1, 2, 4 or 8 bytes is one access. A copy to the mapping is
 * fenced: it is on its way to the GPU on return, and visible there before anything copied or stored
 * later. Neither function waits for GPU work or takes a lock. Size 0 does nothing.
 *
 * EINVAL: the pin is not mapped, the range leaves its mapping, or the host memory overlaps the
 * range.
 */
int gdr_copy_to_mapping(gdr_mh_t handle, void *map_d_ptr, const void *h_ptr, size_t size);
int gdr_copy_from_mapping(gdr_mh_t handle, void *h_ptr, const void *map_d_ptr, size_t size);

/* The version of the interface, and of the kernel module (without one, of the interface). */
void gdr_runtime_get_version(int *major, int *minor);
int gdr_driver_get_version(gdr_t g, int *major, int *minor);

/* An attribute of the last pin's backend or, before the first pin, of the expected one. */
int gdr_get_attribute(gdr_t g, gdr_attr_t attr, int *v);

/* A type's name, which is valid while the library is loaded. */
int gdr_get_mapping_type_string(gdr_mapping_type_t mapping_type, const char **pstr);

#ifdef __cplusplus
}
#endif

#endif
