/* SPDX-License-Identifier: MIT */
#include "cuda/pointer.h"

#include <errno.h>
#include <stdio.h>

#include "common/forks.h"

enum pointer_attribute {
	CONTEXT = 1,
	BUFFER_ID = 7,
	DEVICE_ORDINAL = 9,
	RANGE_START_ADDR = 11,
	RANGE_SIZE = 12,
	MAPPING_SIZE = 18,
	MAPPING_BASE_ADDR = 19,
};

enum device_attribute {
	PCI_BUS_ID = 33,
	PCI_DEVICE_ID = 34,
	PCI_DOMAIN_ID = 50,
	USES_HOST_PAGE_TABLES = 100,
	DMA_BUF_MMAP_SUPPORTED = 152,
};

#define PINNED 1		/* CUmemAllocationType */
#define ON_DEVICE 1		/* CUmemLocationType */
#define PROT_READ_ONLY 1	/* CUmemAccess_flags */
#define POSIX_FILE_DESCRIPTOR 1 /* CUmemAllocationHandleType */
#define DMA_BUF_FD 1		/* CUmemRangeHandleType */
#define DMA_BUF_THROUGH_PCIE 1	/* a flag of cuMemGetHandleForAddressRange */
#define NOT_INITIALIZED 3	/* CUresult */
#define NOT_SUPPORTED 801
#define CAPTURE_MODE_RELAXED 2 /* CUstreamCaptureMode */

/* Add CUDA's result to an error with its own message; returns -1. */
static int answered(struct core_error *error, const struct core_cuda *cuda, int result)
{
	error->status = (uint32_t)result;
	error->result = core_cuda_error_name(cuda, result);
	return -1;
}

int core_pointer_find(const struct core_cuda *cuda, uint64_t ptr, struct core_pointer *pointer,
		      struct core_error *error)
{
	const struct {
		int attribute;
		void *answer;
	} questions[] = {
		{RANGE_START_ADDR, &pointer->base},
		{RANGE_SIZE, &pointer->nbytes},
		{DEVICE_ORDINAL, &pointer->device},
		{CONTEXT, &pointer->context},
	};

	*pointer = (struct core_pointer){.ptr = ptr};
	for (size_t i = 0; i < sizeof(questions) / sizeof(questions[0]); i++) {
		int result = cuda->cuPointerGetAttribute(questions[i].answer,
							 questions[i].attribute, ptr);

		if (result) {
			core_fail(error, CORE_FAILED_HANDLE, EINVAL,
				  result == NOT_INITIALIZED
					  ? "%#llx cannot be GPU memory yet (%s): call cuInit() or "
					    "any function of the CUDA runtime in this process first"
					  : "%#llx is not memory that CUDA knows (%s): pass a "
					    "pointer from cuMemAlloc, cudaMalloc or a CUDA array "
					    "of this process, not a host address",
				  (unsigned long long)ptr, core_cuda_error_name(cuda, result));
			return answered(error, cuda, result);
		}
	}
	/* A driver without these attributes has no reservations with several mappings either. */
	if (cuda->cuPointerGetAttribute(&pointer->map_base, MAPPING_BASE_ADDR, ptr) ||
	    cuda->cuPointerGetAttribute(&pointer->map_nbytes, MAPPING_SIZE, ptr)) {
		pointer->map_base = pointer->base;
		pointer->map_nbytes = pointer->nbytes;
	}
	return 0;
}

/* Allocations begin at multiples of this. */
#define ALIGNMENT 256

static int find_first(const struct core_cuda *cuda, const struct core_range *range, uint64_t page,
		      struct core_pointer *pointer)
{
	uint64_t end = range->start + page < range->end ? range->start + page : range->end;
	struct core_error ignored;

	for (uint64_t at = range->start; at < end; at += ALIGNMENT)
		if (!core_pointer_find(cuda, at, pointer, &ignored))
			return 0;
	return -1;
}

int core_pointer_range(const struct core_cuda *cuda, uint64_t ptr, uint64_t nbytes, uint64_t page,
		       struct core_pointer *pointer, struct core_range *range,
		       struct core_error *error)
{
	uint64_t room;

	if (ptr > UINT64_MAX - (page - 1) || nbytes > UINT64_MAX - (page - 1) - ptr)
		return core_fail(error, CORE_FAILED_SIZE, EINVAL,
				 "%llu bytes at %#llx run past the end of the address space",
				 (unsigned long long)nbytes, (unsigned long long)ptr);
	range->start = ptr / page * page;
	range->end = (ptr + nbytes + page - 1) / page * page;
	if (core_pointer_find(cuda, ptr, pointer, error))
		return page > 1 ? find_first(cuda, range, page, pointer) : -1;

	room = pointer->base + pointer->nbytes - ptr;
	if (page > 1 || nbytes <= room)
		return 0;
	return core_fail(error, CORE_FAILED_SIZE, EINVAL,
			 "%llu bytes at %#llx run past the end of the allocation, which has %llu "
			 "bytes from there",
			 (unsigned long long)nbytes, (unsigned long long)ptr,
			 (unsigned long long)room);
}

/* End an export: make the descriptor that CUDA opened private. Returns a CUresult. */
static int end_export(int result, int *fd)
{
	if (!result) {
		*fd = core_private_adopt(*fd);
		result = *fd < 0 ? CORE_CUDA_OUT_OF_MEMORY : 0;
	}
	core_export_end();
	return result;
}

static int export_handle(const struct core_cuda *cuda, uint64_t handle, int *fd)
{
	core_export_begin();
	return end_export(cuda->cuMemExportToShareableHandle(fd, handle, POSIX_FILE_DESCRIPTOR, 0),
			  fd);
}

/* Export the VMM allocation behind a pointer to *fd, which is -1 for other memory. */
static int export(const struct core_cuda *cuda, uint64_t ptr, int *fd, struct core_error *error)
{
	uint64_t handle;
	int result;

	*fd = -1;
	if (!cuda->cuMemRetainAllocationHandle ||
	    cuda->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)ptr))
		return 0;
	result = export_handle(cuda, handle, fd);
	cuda->cuMemRelease(handle);
	if (result == CORE_CUDA_OPERATING_SYSTEM || result == CORE_CUDA_OUT_OF_MEMORY)
		return core_cuda_fail(
			error, cuda, "cuMemExportToShareableHandle", result,
			"exporting VMM memory, which takes a file descriptor (see ulimit -n)");
	if (result) {
		core_fail(error, CORE_FAILED_HANDLE, EINVAL,
			  "the VMM allocation at %#llx cannot be exported (%s): its creator "
			  "must ask for POSIX file descriptor handles in cuMemCreate",
			  (unsigned long long)ptr, core_cuda_error_name(cuda, result));
		return answered(error, cuda, result);
	}
	return 0;
}

int core_pointer_exports(const struct core_cuda *cuda, const struct core_pointer *pointer,
			 const struct core_range *range, core_export_fn tell, void *to,
			 struct core_error *error)
{
	struct core_pointer here = *pointer;
	uint64_t at = range->start;
	int fd, ret;

	if (export(cuda, pointer->ptr, &fd, error))
		return -1;
	if (fd < 0)
		return 0;
	for (;;) {
		uint64_t room = here.map_base + here.map_nbytes - at;
		uint64_t nbytes = range->end - at < room ? range->end - at : room;

		ret = tell(to, fd, at - here.map_base, nbytes, error);
		core_private_close(fd);
		at += nbytes;
		if (ret || at == range->end)
			return ret ? -1 : 1;
		if (core_pointer_find(cuda, at, &here, error) || export(cuda, at, &fd, error))
			return -1;
		if (fd < 0)
			return core_fail(
				error, CORE_FAILED_SIZE, EINVAL,
				"the memory from %#llx on is of a different kind than that "
				"before it: pin them separately",
				(unsigned long long)at);
	}
}

int core_device_export(const struct core_cuda *cuda, int device, size_t *nbytes,
		       struct core_error *error)
{
	const struct core_cuda_allocation smallest = {
		.type = PINNED,
		.handle_types = POSIX_FILE_DESCRIPTOR,
		.location_type = ON_DEVICE,
		.location_id = device,
	};
	const char *call = "cuMemGetAllocationGranularity";
	uint64_t handle;
	int fd, result;

	if (!cuda->cuMemCreate)
		return core_fail(error, CORE_FAILED_UNAVAILABLE, EOPNOTSUPP,
				 "this CUDA driver lacks cuMemCreate: use a newer one");
	result = cuda->cuMemGetAllocationGranularity(nbytes, &smallest, 0);
	if (!result) {
		call = "cuMemCreate";
		result = cuda->cuMemCreate(&handle, *nbytes, &smallest, 0);
	}
	if (!result) {
		call = "cuMemExportToShareableHandle";
		result = export_handle(cuda, handle, &fd);
		cuda->cuMemRelease(handle);
	}
	return result ? core_cuda_fail(error, cuda, call, result, "exporting GPU memory") : fd;
}

int core_pointer_ipc_handle(const struct core_cuda *cuda, const struct core_pointer *pointer,
			    struct core_cuda_ipc *handle, struct core_error *error)
{
	struct core_context context;
	int result;

	if (core_context_enter(cuda, pointer, &context, error))
		return -1;
	result = cuda->cuIpcGetMemHandle(handle, pointer->ptr);
	core_context_leave(cuda, &context);
	if (result) {
		core_fail(error, CORE_FAILED_HANDLE, EINVAL,
			  "the memory at %#llx has no IPC handle (%s), so it is of a kind "
			  "that cannot be pinned this way (a cuMemAllocAsync pool, managed "
			  "or host memory): use cuMemAlloc, cudaMalloc or gdrpy.alloc",
			  (unsigned long long)pointer->ptr, core_cuda_error_name(cuda, result));
		return answered(error, cuda, result);
	}
	return 0;
}

int core_pointer_dmabuf(const struct core_cuda *cuda, const struct core_pointer *pointer,
			uint64_t nbytes, bool force_pcie, int *fd, struct core_error *error)
{
	struct core_context context;
	int result;

	if (!cuda->cuMemGetHandleForAddressRange)
		return core_fail(
			error, CORE_FAILED_UNAVAILABLE, EOPNOTSUPP,
			"this CUDA driver cannot export dma-bufs: use one of CUDA 13.3 or newer");
	if (core_context_enter(cuda, pointer, &context, error))
		return -1;
	core_export_begin();
	result = cuda->cuMemGetHandleForAddressRange(fd, pointer->ptr, nbytes, DMA_BUF_FD,
						     force_pcie ? DMA_BUF_THROUGH_PCIE : 0);
	result = end_export(result, fd);
	core_context_leave(cuda, &context);
	if (result) {
		core_fail(error,
			  force_pcie && result == NOT_SUPPORTED ? CORE_FAILED_UNAVAILABLE
								: CORE_FAILED_HANDLE,
			  EINVAL, "the driver refuses a dma-buf for %llu bytes at %#llx (%s)",
			  (unsigned long long)nbytes, (unsigned long long)pointer->ptr,
			  core_cuda_error_name(cuda, result));
		return answered(error, cuda, result);
	}
	return 0;
}

int core_pointer_id(const struct core_cuda *cuda, uint64_t ptr, uint64_t *id)
{
	return cuda->cuPointerGetAttribute(id, BUFFER_ID, ptr) ? -1 : 0;
}

bool core_pointer_readonly(const struct core_cuda *cuda, const struct core_pointer *pointer)
{
	const struct core_cuda_location location = {ON_DEVICE, pointer->device};
	unsigned long long access;

	return !pointer->context && cuda->cuMemGetAccess &&
	       !cuda->cuMemGetAccess(&access, &location, pointer->ptr) && access == PROT_READ_ONLY;
}

static int device_attribute(const struct core_cuda *cuda, int device, int attribute, int *value)
{
	int handle;

	*value = 0;
	return cuda->cuDeviceGet(&handle, device) ||
			       cuda->cuDeviceGetAttribute(value, attribute, handle)
		       ? -1
		       : 0;
}

int core_device_current(const struct core_cuda *cuda, void **context)
{
	int current, handle;

	if (cuda->cuCtxGetCurrent(context) || !*context || cuda->cuCtxGetDevice(&current))
		return -1;
	for (int device = 0; !cuda->cuDeviceGet(&handle, device); device++)
		if (handle == current)
			return device;
	return -1;
}

int core_device_pci(const struct core_cuda *cuda, int device, int pci[3])
{
	return device_attribute(cuda, device, PCI_DOMAIN_ID, &pci[0]) ||
			       device_attribute(cuda, device, PCI_BUS_ID, &pci[1]) ||
			       device_attribute(cuda, device, PCI_DEVICE_ID, &pci[2])
		       ? -1
		       : 0;
}

bool core_device_maps_dmabuf(const struct core_cuda *cuda, int device)
{
	int supported;

	return !device_attribute(cuda, device, DMA_BUF_MMAP_SUPPORTED, &supported) && supported;
}

bool core_device_is_coherent(const struct core_cuda *cuda, int device)
{
	int coherent;

	return !device_attribute(cuda, device, USES_HOST_PAGE_TABLES, &coherent) && coherent;
}

void core_device_location(const struct core_cuda *cuda, int device, char location[40])
{
	int pci[3];

	if (core_cuda_simulated(cuda))
		snprintf(location, 40, "simulated GPU %d", device);
	else if (core_device_pci(cuda, device, pci))
		snprintf(location, 40, "an unknown GPU");
	else
		snprintf(location, 40, "%04x:%02x:%02x.0", pci[0], pci[1], pci[2]);
}

static int context_failed(const struct core_cuda *cuda, const char *call, int result, int device,
			  struct core_error *error)
{
	char purpose[64];

	snprintf(purpose, sizeof(purpose), "using the CUDA context of device %d", device);
	return core_cuda_fail(error, cuda, call, result, purpose);
}

/* Retained until the process ends, as other users of a primary context do. */
static int primary_context(const struct core_cuda *cuda, int device, void **context,
			   struct core_error *error)
{
	int handle, result = cuda->cuDeviceGet(&handle, device);

	if (result)
		return context_failed(cuda, "cuDeviceGet", result, device, error);
	result = cuda->cuDevicePrimaryCtxRetain(context, handle);
	if (result)
		return context_failed(cuda, "cuDevicePrimaryCtxRetain", result, device, error);
	return 0;
}

static void exchange_capture_mode(const struct core_cuda *cuda, struct core_context *context)
{
	if (cuda->cuThreadExchangeStreamCaptureMode)
		cuda->cuThreadExchangeStreamCaptureMode(&context->capture_mode);
}

int core_context_enter(const struct core_cuda *cuda, const struct core_pointer *pointer,
		       struct core_context *context, struct core_error *error)
{
	void *wanted = pointer->context;
	int result;

	if (!wanted && primary_context(cuda, pointer->device, &wanted, error))
		return -1;
	result = cuda->cuCtxPushCurrent(wanted);
	if (result)
		return context_failed(cuda, "cuCtxPushCurrent", result, pointer->device, error);
	context->capture_mode = CAPTURE_MODE_RELAXED;
	exchange_capture_mode(cuda, context);
	return 0;
}

void core_context_leave(const struct core_cuda *cuda, struct core_context *context)
{
	void *left;

	exchange_capture_mode(cuda, context);
	cuda->cuCtxPopCurrent(&left);
}
