/* SPDX-License-Identifier: MIT */
/*
 * What CUDA says of a device pointer: the allocation that it lies in, and the handles by which
 * others take that in.
 */
#ifndef GDRPY_POINTER_H
#define GDRPY_POINTER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"
#include "cuda/driver.h"

struct core_pointer {
	uint64_t ptr;	 /* what was asked about */
	uint64_t base;	 /* of its allocation; of VMM memory, of the reservation that it lies in */
	uint64_t nbytes; /* from base on */
	uint64_t map_base; /* of what the driver mapped at once: one cuMemMap, or a whole block */
	uint64_t map_nbytes;
	void *context; /* its CUcontext; NULL for VMM memory */
	int device;    /* ordinal */
};

/* All of these return 0, or -1 with *error filled in, unless they say otherwise. */

/* CORE_FAILED_HANDLE for what is no GPU memory of this process. */
int core_pointer_find(const struct core_cuda *cuda, uint64_t ptr, struct core_pointer *pointer,
		      struct core_error *error);

/*
 * The allocation that holds all of [ptr, ptr + nbytes). CORE_FAILED_SIZE where there is less.
 *
 * With a page size other than 1 the range is rounded out to whole pages first. Then it may begin
 * before any allocation and end after one: what is found is the first one in its first page.
 */
struct core_range {
	uint64_t start, end;
};

int core_pointer_range(const struct core_cuda *cuda, uint64_t ptr, uint64_t nbytes, uint64_t page,
		       struct core_pointer *pointer, struct core_range *range,
		       struct core_error *error);

/*
 * Have told the VMM allocations that are mapped in a range, which begins in the one behind the
 * pointer: a descriptor, closed afterwards, and what of the allocation lies in the range. 1, or 0
 * where the memory is no VMM memory; -1 with *error filled in: CORE_FAILED_HANDLE if an allocation
 * was not made to be exported.
 */
typedef int (*core_export_fn)(void *to, int fd, uint64_t offset, uint64_t nbytes,
			      struct core_error *error);
int core_pointer_exports(const struct core_cuda *cuda, const struct core_pointer *pointer,
			 const struct core_range *range, core_export_fn tell, void *to,
			 struct core_error *error);

/*
 * A descriptor of a new allocation, the smallest that a device has, which it alone keeps alive, and
 * its bytes; -1 where there is no room for it.
 */
int core_device_export(const struct core_cuda *cuda, int device, size_t *nbytes);

/*
 * The legacy IPC handle of a cuMemAlloc pointer. Such a handle lets any process of the machine map
 * the memory: it is made only when a pointer is to be pinned. CORE_FAILED_HANDLE for memory that
 * has none.
 */
int core_pointer_ipc_handle(const struct core_cuda *cuda, const struct core_pointer *pointer,
			    struct core_cuda_ipc *handle, struct core_error *error);

/* The dma-buf of a range of whole pages of this machine, into *fd. CORE_FAILED_HANDLE. */
int core_pointer_dmabuf(const struct core_cuda *cuda, const struct core_pointer *pointer,
			uint64_t nbytes, bool force_pcie, int *fd, struct core_error *error);

/* CUDA's number for the allocation behind a pointer, which no later one gets. -1 for none. */
int core_pointer_id(const struct core_cuda *cuda, uint64_t ptr, uint64_t *id);

/* The current context of this thread, and its device's ordinal; -1 where none is current. */
int core_device_current(const struct core_cuda *cuda, void **context);

/* PCI domain, bus and slot of a device; -1 where the driver does not say. */
int core_device_pci(const struct core_cuda *cuda, int device, int pci[3]);

/* Whether the CPU may map a dma-buf of the device. */
bool core_device_maps_dmabuf(const struct core_cuda *cuda, int device);

/* Whether it uses the CPU's page tables, as NVIDIA's library asks: its memory is cached there. */
bool core_device_is_coherent(const struct core_cuda *cuda, int device);

/* On which GPU memory lies, in words: a PCI address, or the simulated GPU's number. */
void core_device_location(const struct core_cuda *cuda, int device, char location[40]);

/*
 * Make the context of a pointer current, or where it has none the primary one of its device, and
 * have calls allowed that a stream capture of this thread would forbid. Then put both back.
 */
struct core_context {
	int capture_mode;
};

int core_context_enter(const struct core_cuda *cuda, const struct core_pointer *pointer,
		       struct core_context *context, struct core_error *error);
void core_context_leave(const struct core_cuda *cuda, struct core_context *context);

#endif
