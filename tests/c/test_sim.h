/* SPDX-License-Identifier: MIT */
/* What the tests of the simulated driver share: a started driver, and memory as they need it. */
#ifndef GDRPY_TESTS_TEST_SIM_H
#define GDRPY_TESTS_TEST_SIM_H

#include <dirent.h>
#include <stdint.h>

#include "check.h"
#include "cuda_abi.h"

#define MIB ((size_t)1 << 20)
#define GRANULE (2 * MIB)

#define OK(call) CHECK_EQ(call, CUDA_SUCCESS)

/* The primary context of device 0, current on this thread. */
static inline CUcontext start(void)
{
	CUcontext context;

	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	return context;
}

static inline void stop(void)
{
	OK(cuDevicePrimaryCtxRelease_v2(0));
	OK(cuCtxSetCurrent(NULL));
}

static inline size_t free_memory(void)
{
	size_t free, total;

	OK(cuMemGetInfo_v2(&free, &total));
	return free;
}

/* One of them is that of the folder that the answer is read from. */
static inline int count_descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int count = 0;

	CHECK(folder);
	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

static inline CUdeviceptr allocate(size_t size)
{
	CUdeviceptr pointer;

	OK(cuMemAlloc_v2(&pointer, size));
	return pointer;
}

static inline CUmemGenericAllocationHandle create(size_t size)
{
	const CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
	};
	CUmemGenericAllocationHandle handle;

	OK(cuMemCreate(&handle, size, &properties, 0));
	return handle;
}

static inline CUdeviceptr reserve(size_t size)
{
	CUdeviceptr pointer;

	OK(cuMemAddressReserve(&pointer, size, 0, 0, 0));
	return pointer;
}

static inline CUresult set_access(CUdeviceptr pointer, size_t size, unsigned int flags)
{
	const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, flags};

	return cuMemSetAccess(pointer, size, &access, 1);
}

/* Mapped read-write at a reservation of its own. */
static inline CUdeviceptr map(CUmemGenericAllocationHandle handle, size_t size)
{
	CUdeviceptr pointer = reserve(size);

	OK(cuMemMap(pointer, size, 0, handle, 0));
	OK(set_access(pointer, size, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
	return pointer;
}

static inline void unmap(CUdeviceptr pointer, size_t size)
{
	OK(cuMemUnmap(pointer, size));
	OK(cuMemAddressFree(pointer, size));
}

/* A device pointer is an address of this process too. */
static inline void *host(CUdeviceptr pointer)
{
	return (void *)(uintptr_t)pointer;
}

static inline CUstream new_stream(unsigned int flags)
{
	CUstream stream;

	OK(cuStreamCreate(&stream, flags));
	return stream;
}

#endif
