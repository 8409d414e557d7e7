/* SPDX-License-Identifier: MIT */
/* Shared by DMA copies of bytes and of rows. */
#ifndef GDRPY_DMA_PRIVATE_H
#define GDRPY_DMA_PRIVATE_H

#include <pthread.h>

#include "cuda/driver.h"
#include "dma/dma.h"

struct core_staging {
	void *memory;
	void *idle; /* an event: DMA is done with the memory */
};

struct core_lane {
	void *stream;
	struct core_staging staging[2];
};

struct core_dma {
	struct core_cuda cuda;
	void *context;
	void *stream;		 /* for copies without staging */
	pthread_mutex_t staging; /* held during a staged copy */
	pthread_mutex_t streams; /* held while one is created */
	struct core_lane lanes[CORE_LANES_MAX];
};

/* Whether the result is success. On failure, fill in *error unless it already has a status. */
bool core_dma_check(struct core_dma *dma, struct core_error *error, const char *call, int result);

#define CORE_CUDA_CALL(error, dma, function, ...)                                                  \
	core_dma_check(dma, error, #function, (dma)->cuda.function(__VA_ARGS__))

/* Make the device's context current, and restore the previous one. */
bool core_dma_enter(struct core_dma *dma, struct core_error *error);
void core_dma_leave(struct core_dma *dma);

/* Create what a stream or a lane lacks. After a failure, what exists is kept for the next call. */
bool core_dma_have_stream(struct core_dma *dma, void **stream, struct core_error *error);
bool core_dma_have_lane(struct core_dma *dma, struct core_lane *lane, struct core_error *error);

/* A chunk size that gives every lane chunks to overlap, each worth its calls. */
size_t core_dma_chunk(size_t nbytes, unsigned int lanes);

#endif
