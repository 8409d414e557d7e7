/* SPDX-License-Identifier: MIT */
/*
 * Backend dmabuf: the dma-buf of a device range, which drivers from CUDA 13.3 on let be mapped.
 * Source: CUDA driver API, cuMemGetHandleForAddressRange and
 * CU_DEVICE_ATTRIBUTE_DMA_BUF_MMAP_SUPPORTED.
 */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "backends/backends.h"
#include "common/forks.h"
#include "cuda/pointer.h"
#include "memory/private.h"

static void status(const struct gdr_cuda *cuda, int device, const struct gdr_node *node,
		   struct gdr_status *status)
{
	(void)node;
	*status = (struct gdr_status){0};
	if (device < 0 || !cuda)
		gdr_status_say(status, "needs a CUDA device in this process",
			       "open it with gpu=True");
	else if (!gdr_device_maps_dmabuf(cuda, device))
		gdr_status_say(status, "this CUDA driver does not let the CPU map a dma-buf",
			       "use a driver of CUDA 13.3 or newer");
	else {
		status->usable = true;
		gdr_status_say(status, "the driver lets dma-bufs be mapped", "");
	}
}

/* Cached where CPU and GPU memory are coherent, as on Grace, unless it goes over PCIe all the same.
 */
static enum gdr_mapping_kind kind_of(const struct gdr_cuda *cuda, int device, bool force_pcie)
{
	bool cached =
		gdr_cuda_simulated(cuda) || (!force_pcie && gdr_device_is_coherent(cuda, device));

	return cached ? GDR_MAPPING_CACHED : GDR_MAPPING_WC;
}

/*
 * A dma-buf is of whole pages of this machine, and begins in its allocation. That of more than the
 * pointer's own range shows the rest of its first and last page.
 */
static struct gdr_memory *take(const struct gdr_cuda *cuda, const struct gdr_request *request,
			       struct gdr_error *error)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct gdr_part part = {.fd = -1};
	struct gdr_memory *memory;
	struct gdr_pointer pointer;
	struct gdr_range range, pages;

	if (!request->ptr) {
		gdr_fail(error, GDR_FAILED_HANDLE, EINVAL,
			 "the dmabuf backend needs the GPU view: open it with gpu=True");
		return NULL;
	}
	if (gdr_pointer_range(cuda, request->ptr, request->nbytes, request->gpu_pages ? page : 1,
			      &pointer, &range, error))
		return NULL;
	pages.start = range.start / page * page;
	pages.end = (range.end + page - 1) / page * page;
	if (pages.start < pointer.base) {
		gdr_fail(error, GDR_FAILED_HANDLE, EINVAL,
			 "the allocation at %#llx does not begin on a page of %llu bytes, as a "
			 "dma-buf must",
			 (unsigned long long)pointer.base, (unsigned long long)page);
		return NULL;
	}
	memory = gdr_memory_new(&gdr_backend_dmabuf, &gdr_fd_memory_functions, sizeof(*memory),
				error);
	if (!memory)
		return NULL;
	memory->va = range.start;
	memory->device = pointer.device;
	memory->kind = kind_of(cuda, pointer.device, request->force_pcie);
	gdr_device_location(cuda, pointer.device, memory->location);
	part.offset = range.start - pages.start;
	part.nbytes = range.end - range.start;
	pointer.ptr = pages.start;
	if (gdr_pointer_dmabuf(cuda, &pointer, pages.end - pages.start, request->force_pcie,
			       &part.fd, error))
		return gdr_memory_undo(memory);
	if (gdr_memory_add(memory, &part, error)) {
		gdr_private_close(part.fd);
		return gdr_memory_undo(memory);
	}
	return memory;
}

const struct gdr_backend gdr_backend_dmabuf = {
	.name = "dmabuf",
	.status = status,
	.take = take,
};
