/* SPDX-License-Identifier: MIT */
/*
 * CUDA's facts about a device pointer: its allocation, and the handles that export it.
 */
#ifndef GDRPY_POINTER_H
#define GDRPY_POINTER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"
#include "cuda/driver.h"

struct core_pointer {
	uint64_t ptr;	   /* the pointer asked about */
	uint64_t base;	   /* of its allocation, or of its reservation for VMM memory */
	uint64_t nbytes;   /* from base on */
	uint64_t map_base; /* of the driver's mapping: one cuMemMap, or a whole block */
	uint64_t map_nbytes;
	void *context; /* its CUcontext; NULL for VMM memory */
	int device;    /* ordinal */
};

/* Unless noted, these return 0, or -1 with *error filled in. */

/* CORE_FAILED_HANDLE if the pointer is not GPU memory of this process. */
int core_pointer_find(const struct core_cuda *cuda, uint64_t ptr, struct core_pointer *pointer,
		      struct core_error *error);

/*
 * Find the allocation that holds all of [ptr, ptr + nbytes). CORE_FAILED_SIZE if it is shorter.
 *
 * With a page size other than 1, the range is rounded out to whole pages first. It may then begin
 * and end outside allocations. The result is the allocation at ptr, or else the first in that page.
 */
struct core_range {
	uint64_t start, end;
};

int core_pointer_range(const struct core_cuda *cuda, uint64_t ptr, uint64_t nbytes, uint64_t page,
		       struct core_pointer *pointer, struct core_range *range,
		       struct core_error *error);

/*
 * Call `tell` for each VMM allocation mapped in a range that begins in the pointer's: with a
 * descriptor, closed afterwards, and the part in the range. 1, or 0 if the pointer is not VMM
 * memory; -1 with *error filled in: CORE_FAILED_HANDLE if an allocation was not created for export.
 */
typedef int (*core_export_fn)(void *to, int fd, uint64_t offset, uint64_t nbytes,
			      struct core_error *error);
int core_pointer_exports(const struct core_cuda *cuda, const struct core_pointer *pointer,
			 const struct core_range *range, core_export_fn tell, void *to,
			 struct core_error *error);

/*
 * Return a descriptor of a new allocation of the device's smallest size, or -1, and store that
 * size. Only the descriptor keeps the allocation alive.
 */
int core_device_export(const struct core_cuda *cuda, int device, size_t *nbytes,
		       struct core_error *error);

/*
 * The legacy IPC handle of a cuMemAlloc pointer. It lets any process of the machine map the memory,
 * so it is created only to pin a pointer. CORE_FAILED_HANDLE for memory without a handle.
 */
int core_pointer_ipc_handle(const struct core_cuda *cuda, const struct core_pointer *pointer,
			    struct core_cuda_ipc *handle, struct core_error *error);

/* Store a dma-buf of whole CPU pages in *fd. CORE_FAILED_HANDLE or CORE_FAILED_UNAVAILABLE. */
int core_pointer_dmabuf(const struct core_cuda *cuda, const struct core_pointer *pointer,
			uint64_t nbytes, bool force_pcie, int *fd, struct core_error *error);

/* CUDA's ID of a pointer's allocation, which is never reused; -1 if there is none. */
int core_pointer_id(const struct core_cuda *cuda, uint64_t ptr, uint64_t *id);

/* Whether the page tables of the pointer's device let it read but not write: of VMM memory only. */
bool core_pointer_readonly(const struct core_cuda *cuda, const struct core_pointer *pointer);

/* Return the ordinal of the current context's device, and the context; -1 if none is current. */
int core_device_current(const struct core_cuda *cuda, void **context);

/* PCI domain, bus and slot of a device; -1 if the driver does not report them. */
int core_device_pci(const struct core_cuda *cuda, int device, int pci[3]);

/* Whether the CPU may map a dma-buf of the device. */
bool core_device_maps_dmabuf(const struct core_cuda *cuda, int device);

/* Whether the device uses the CPU's page tables, NVIDIA's test of coherence: mappings are cached.
 */
bool core_device_is_coherent(const struct core_cuda *cuda, int device);

/* A device in words: its PCI address, or the simulated GPU's number. */
void core_device_location(const struct core_cuda *cuda, int device, char location[40]);

/*
 * Make a pointer's context current, or the device's primary one if it has none, and allow calls
 * that a stream capture of this thread would forbid. core_context_leave() restores both.
 */
struct core_context {
	int capture_mode;
};

int core_context_enter(const struct core_cuda *cuda, const struct core_pointer *pointer,
		       struct core_context *context, struct core_error *error);
void core_context_leave(const struct core_cuda *cuda, struct core_context *context);

#endif
