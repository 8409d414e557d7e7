/* SPDX-License-Identifier: MIT */
/* Pinned host memory. Devices and the program access it at the same address. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "address.h"
#include "capture.h"
#include "range.h"

#define ALLOC_FLAGS                                                                                \
	(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED)
#define REGISTER_FLAGS                                                                             \
	(CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |                              \
	 CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY)

static void host_destroy(struct range *range)
{
	munmap((void *)(uintptr_t)range->start, range->size);
}

static void registered_destroy(struct range *range)
{
	(void)range; /* the program owns the memory */
}

static CUresult host_alloc(struct context *context, void **pointer, size_t size, unsigned int flags)
{
	struct range *range;
	void *memory;

	REQUIRE(pointer && !(flags & ~(unsigned int)ALLOC_FLAGS));
	if (!size) {
		*pointer = NULL;
		return CUDA_SUCCESS;
	}
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	range = range_new(RANGE_HOST, (uintptr_t)memory, size);
	if (!range) {
		munmap(memory, size);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	range->context = context;
	range->destroy = host_destroy;
	range->host_flags = flags | CU_MEMHOSTALLOC_DEVICEMAP;
	*pointer = memory;
	return CUDA_SUCCESS;
}

CUresult cuMemAllocHost_v2(void **pointer, size_t size)
{
	API(cuMemAllocHost_v2, NEEDS_CONTEXT);

	TRY(capture_allows_unsafe());
	return host_alloc(api_context, pointer, size, 0);
}

CUresult cuMemHostAlloc(void **pointer, size_t size, unsigned int flags)
{
	API(cuMemHostAlloc, NEEDS_CONTEXT);

	TRY(capture_allows_unsafe());
	return host_alloc(api_context, pointer, size, flags);
}

CUresult cuMemFreeHost(void *pointer)
{
	API(cuMemFreeHost, NEEDS_INIT);

	TRY(capture_allows_unsafe());
	return pointer ? range_free((uintptr_t)pointer, RANGE_HOST) : CUDA_SUCCESS;
}

static bool is_mapped(uint64_t start, uint64_t size)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t first = start / page * page;
	uint64_t pages = (start + size - first + page - 1) / page;
	unsigned char *residency = malloc(pages);
	bool mapped;

	if (!residency)
		return false;
	mapped = mincore((void *)(uintptr_t)first, pages * page, residency) == 0;
	free(residency);
	return mapped;
}

CUresult cuMemHostRegister_v2(void *pointer, size_t size, unsigned int flags)
{
	API(cuMemHostRegister_v2, NEEDS_CONTEXT);
	uint64_t start = (uintptr_t)pointer;
	struct range *range;

	/* A simulated machine has no I/O memory. */
	REQUIRE(pointer && size && start + size >= start &&
		!(flags & (~(unsigned int)REGISTER_FLAGS | CU_MEMHOSTREGISTER_IOMEMORY)));
	if (range_overlaps(start, size)) {
		range = range_at(start);
		return range && range->kind != RANGE_REGISTERED
			       ? CUDA_ERROR_INVALID_VALUE
			       : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	}
	REQUIRE(!reservation_at(start) && is_mapped(start, size));
	range = range_new(RANGE_REGISTERED, start, size);
	if (!range)
		return CUDA_ERROR_OUT_OF_MEMORY;
	range->context = api_context;
	range->destroy = registered_destroy;
	range->host_flags = flags | CU_MEMHOSTREGISTER_DEVICEMAP;
	return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void *pointer)
{
	API(cuMemHostUnregister, NEEDS_CONTEXT);

	REQUIRE(pointer);
	if (!range_at((uintptr_t)pointer))
		return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	return range_free((uintptr_t)pointer, RANGE_REGISTERED);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *pointer, unsigned int flags)
{
	API(cuMemHostGetDevicePointer_v2, NEEDS_CONTEXT);
	struct range *range = range_at((uintptr_t)pointer);

	REQUIRE(device && !flags && range && range_is_host(range));
	*device = (uintptr_t)pointer;
	return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int *flags, void *pointer)
{
	API(cuMemHostGetFlags, NEEDS_CONTEXT);
	struct range *range = range_at((uintptr_t)pointer);

	REQUIRE(flags && range && range_is_host(range));
	*flags = range->host_flags;
	return CUDA_SUCCESS;
}
