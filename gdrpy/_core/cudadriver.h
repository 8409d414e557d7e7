/* SPDX-License-Identifier: MIT */
/*
 * The functions of the CUDA driver that copies need, taken from the libcuda.so.1 that the process
 * has loaded already, real or simulated: this library links none and loads none.
 */
#ifndef GDRPY_CUDADRIVER_H
#define GDRPY_CUDADRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* CUDA_MEMCPY2D: one end of a copy of rows, in host or in device memory, and both. */
struct gdr_cuda_end {
	size_t x, y;
	unsigned int memory_type;
	void *host;
	uint64_t device;
	void *array;
	size_t pitch;
};

struct gdr_cuda_rows {
	struct gdr_cuda_end from, to;
	size_t nbytes, count; /* of a row, and rows */
};

/* A CUresult. */
#define GDR_CUDA_OUT_OF_MEMORY 2

/* The name in CUDA's header, the symbol behind it, the parameters. Each answers a CUresult. */
#define GDR_CUDA_FUNCTIONS(X)                                                                      \
	X(cuCtxPushCurrent, "cuCtxPushCurrent_v2", (void *context))                                \
	X(cuCtxPopCurrent, "cuCtxPopCurrent_v2", (void **context))                                 \
	X(cuStreamCreate, "cuStreamCreate", (void **stream, unsigned int flags))                   \
	X(cuStreamSynchronize, "cuStreamSynchronize", (void *stream))                              \
	X(cuEventCreate, "cuEventCreate", (void **event, unsigned int flags))                      \
	X(cuEventRecord, "cuEventRecord", (void *event, void *stream))                             \
	X(cuEventSynchronize, "cuEventSynchronize", (void *event))                                 \
	X(cuMemHostAlloc, "cuMemHostAlloc", (void **memory, size_t nbytes, unsigned int flags))    \
	X(cuPointerGetAttributes, "cuPointerGetAttributes",                                        \
	  (unsigned int count, int *attributes, void **values, uint64_t pointer))                  \
	X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2",                                               \
	  (uint64_t device, const void *host, size_t nbytes, void *stream))                        \
	X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2",                                               \
	  (void *host, uint64_t device, size_t nbytes, void *stream))                              \
	X(cuMemcpy2DAsync, "cuMemcpy2DAsync_v2", (const struct gdr_cuda_rows *rows, void *stream))

struct gdr_cuda {
#define GDR_CUDA_MEMBER(name, symbol, parameters) int(*name) parameters;
	GDR_CUDA_FUNCTIONS(GDR_CUDA_MEMBER)
#undef GDR_CUDA_MEMBER
};

/* False if no driver is loaded, or one without some of these. */
bool gdr_cuda_find(struct gdr_cuda *cuda);

#endif
