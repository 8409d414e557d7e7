/* SPDX-License-Identifier: MIT */
/*
 * Backend dmabuf: maps the dma-buf of a device range, which drivers from CUDA 13.3 on allow.
 * Source: CUDA driver API, cuMemGetHandleForAddressRange and
 * CU_DEVICE_ATTRIBUTE_DMA_BUF_MMAP_SUPPORTED.
 */
#include <errno.h>
#include <unistd.h>

#include "backends/backends.h"
#include "common/forks.h"
#include "memory/private.h"

static void status(const struct core_cuda *cuda, int device, const struct core_node *node,
		   struct core_status *status)
{
	(void)node;
	*status = (struct core_status){0};
	if (device < 0 || !cuda)
		core_status_say(status, "needs a CUDA device in this process",
				"open it with gpu=True");
	else if (!core_device_maps_dmabuf(cuda, device))
		core_status_say(status, "this CUDA driver does not let the CPU map a dma-buf",
				"use a driver of CUDA 13.3 or newer");
	else {
		status->usable = true;
		core_status_say(status, "the driver lets the CPU map dma-bufs", "");
	}
}

/* Cached if CPU and GPU memory are coherent, as on Grace, unless PCIe is forced. */
static enum core_mapping_kind kind_of(const struct core_cuda *cuda, int device, bool force_pcie)
{
	bool cached =
		core_cuda_simulated(cuda) || (!force_pcie && core_device_is_coherent(cuda, device));

	return cached ? CORE_MAPPING_CACHED : CORE_MAPPING_WC;
}

/*
 * A dma-buf covers whole CPU pages and begins in its allocation. It also exposes the rest of the
 * range's first and last page.
 */
static struct core_memory *take(const struct core_cuda *cuda, const struct core_request *request,
				const struct core_found *found, struct core_error *error)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct core_pointer pointer = found->pointer;
	struct core_part part = {.fd = -1};
	struct core_memory *memory;
	struct core_range range, pages;

	if (!request->ptr)
		return core_fail_null(
			error, CORE_FAILED_HANDLE, EINVAL,
			"the dmabuf backend needs the GPU view: open it with gpu=True");
	range = (struct core_range){request->ptr, request->ptr + request->nbytes};
	pages.start = range.start / page * page;
	pages.end = (range.end + page - 1) / page * page;
	if (request->gpu_pages)
		range = pages;
	if (pages.start < pointer.base)
		return core_fail_null(
			error, CORE_FAILED_HANDLE, EINVAL,
			"the allocation at %#llx does not begin on a page of %llu bytes, which a "
			"dma-buf requires",
			(unsigned long long)pointer.base, (unsigned long long)page);
	memory = core_memory_new(&core_backend_dmabuf, &core_fd_memory_functions, sizeof(*memory),
				 error);
	if (!memory)
		return NULL;
	memory->va = range.start;
	memory->device = pointer.device;
	memory->kind = kind_of(cuda, pointer.device, request->force_pcie);
	core_device_location(cuda, pointer.device, memory->location);
	part.offset = range.start - pages.start;
	part.nbytes = range.end - range.start;
	pointer.ptr = pages.start;
	if (core_pointer_dmabuf(cuda, &pointer, pages.end - pages.start, request->force_pcie,
				&part.fd, error))
		return core_memory_undo(memory);
	if (core_memory_add(memory, &part, error)) {
		core_private_close(part.fd);
		return core_memory_undo(memory);
	}
	return memory;
}

const struct core_backend core_backend_dmabuf = {
	.name = "dmabuf",
	.status = status,
	.take = take,
};
