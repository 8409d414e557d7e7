/* SPDX-License-Identifier: MIT */
/*
 * The CUDA driver functions that the library needs. They come from the libcuda.so.1 that the
 * process has already loaded, real or simulated; the library neither links nor loads one.
 */
#ifndef GDRPY_CUDA_DRIVER_H
#define GDRPY_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"

/* CUDA_MEMCPY2D: one end of a copy of rows, in host or device memory, and the copy. */
struct core_cuda_end {
	size_t x, y;
	unsigned int memory_type;
	void *host;
	uint64_t device;
	void *array;
	size_t pitch;
};

struct core_cuda_rows {
	struct core_cuda_end from, to;
	size_t nbytes, count; /* bytes of a row, and rows */
};

/* CUipcMemHandle: 64 bytes, which core_ipc_parse() reads. */
struct core_cuda_ipc {
	uint8_t bytes[64];
};

/* CUmemAllocationProp */
struct core_cuda_allocation {
	int type;
	int handle_types;
	int location_type;
	int location_id;
	void *metadata;
	uint8_t compression;
	uint8_t rdma_capable;
	uint16_t usage;
	uint8_t reserved[4];
};

/* CUmemLocation */
struct core_cuda_location {
	int type;
	int id;
};

/* CUresults. */
#define CORE_CUDA_OUT_OF_MEMORY 2
#define CORE_CUDA_OPERATING_SYSTEM 304 /* out of descriptors, for example */

/* The name in CUDA's header, the symbol behind it, the parameters. Each returns a CUresult. */
#define CORE_CUDA_FUNCTIONS(X)                                                                     \
	X(cuGetErrorName, "cuGetErrorName", (int result, const char **name))                       \
	X(cuDeviceGet, "cuDeviceGet", (int *device, int ordinal))                                  \
	X(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int *value, int attribute, int device))   \
	X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (void **context, int device))      \
	X(cuCtxGetCurrent, "cuCtxGetCurrent", (void **context))                                    \
	X(cuCtxGetDevice, "cuCtxGetDevice", (int *device))                                         \
	X(cuCtxPushCurrent, "cuCtxPushCurrent_v2", (void *context))                                \
	X(cuCtxPopCurrent, "cuCtxPopCurrent_v2", (void **context))                                 \
	X(cuStreamCreate, "cuStreamCreate", (void **stream, unsigned int flags))                   \
	X(cuStreamDestroy, "cuStreamDestroy_v2", (void *stream))                                   \
	X(cuStreamSynchronize, "cuStreamSynchronize", (void *stream))                              \
	X(cuEventCreate, "cuEventCreate", (void **event, unsigned int flags))                      \
	X(cuEventRecord, "cuEventRecord", (void *event, void *stream))                             \
	X(cuEventSynchronize, "cuEventSynchronize", (void *event))                                 \
	X(cuMemAlloc, "cuMemAlloc_v2", (uint64_t *memory, size_t nbytes))                          \
	X(cuMemHostAlloc, "cuMemHostAlloc", (void **memory, size_t nbytes, unsigned int flags))    \
	X(cuPointerGetAttribute, "cuPointerGetAttribute",                                          \
	  (void *value, int attribute, uint64_t pointer))                                          \
	X(cuPointerGetAttributes, "cuPointerGetAttributes",                                        \
	  (unsigned int count, int *attributes, void **values, uint64_t pointer))                  \
	X(cuIpcGetMemHandle, "cuIpcGetMemHandle",                                                  \
	  (struct core_cuda_ipc * handle, uint64_t pointer))                                       \
	X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2",                                               \
	  (uint64_t device, const void *host, size_t nbytes, void *stream))                        \
	X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2",                                               \
	  (void *host, uint64_t device, size_t nbytes, void *stream))                              \
	X(cuMemcpy2DAsync, "cuMemcpy2DAsync_v2", (const struct core_cuda_rows *rows, void *stream))

/* NULL if an older or the simulated driver lacks them. */
#define CORE_CUDA_NEWER_FUNCTIONS(X)                                                               \
	X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle",                              \
	  (uint64_t *handle, void *pointer))                                                       \
	X(cuMemRelease, "cuMemRelease", (uint64_t handle))                                         \
	X(cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity",                          \
	  (size_t *nbytes, const struct core_cuda_allocation *what, int option))                   \
	X(cuMemCreate, "cuMemCreate",                                                              \
	  (uint64_t *handle, size_t nbytes, const struct core_cuda_allocation *what,               \
	   unsigned long long flags))                                                              \
	X(cuMemGetAccess, "cuMemGetAccess",                                                        \
	  (unsigned long long *flags, const struct core_cuda_location *location,                   \
	   uint64_t pointer))                                                                      \
	X(cuMemExportToShareableHandle, "cuMemExportToShareableHandle",                            \
	  (void *shareable, uint64_t handle, int type, unsigned long long flags))                  \
	X(cuMemGetHandleForAddressRange, "cuMemGetHandleForAddressRange",                          \
	  (void *handle, uint64_t pointer, size_t nbytes, int type, unsigned long long flags))     \
	X(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", (int *mode))     \
	X(on_bar, "gdrsim_on_bar", (void)) /* only in the simulated driver */

struct core_cuda {
#define CORE_CUDA_MEMBER(name, symbol, parameters) int(*name) parameters;
	CORE_CUDA_FUNCTIONS(CORE_CUDA_MEMBER)
	CORE_CUDA_NEWER_FUNCTIONS(CORE_CUDA_MEMBER)
#undef CORE_CUDA_MEMBER
};

/* False if no driver is loaded, or if it lacks a required function. */
bool core_cuda_find(struct core_cuda *cuda);

/* Whether it is the simulated driver. */
static inline bool core_cuda_simulated(const struct core_cuda *cuda)
{
	return cuda->on_bar;
}

/* A CUresult's name, such as CUDA_ERROR_INVALID_VALUE. */
const char *core_cuda_error_name(const struct core_cuda *cuda, int result);

/* Fill in *error for a failed call and its purpose; returns -1. */
int core_cuda_fail(struct core_error *error, const struct core_cuda *cuda, const char *call,
		   int result, const char *purpose);

#endif
