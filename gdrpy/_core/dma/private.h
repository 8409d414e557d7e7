/* SPDX-License-Identifier: MIT */
/* What copies of bytes and copies of rows by DMA share. */
#ifndef GDRPY_DMA_PRIVATE_H
#define GDRPY_DMA_PRIVATE_H

#include <pthread.h>

#include "cuda/driver.h"
#include "dma/dma.h"

struct core_staging {
	void *memory;
	void *idle; /* an event: DMA has done with the memory */
};

struct core_lane {
	void *stream;
	struct core_staging staging[2];
};

struct core_dma {
	struct core_cuda cuda;
	void *context;
	void *stream;		 /* of copies that need no staging */
	pthread_mutex_t staging; /* held by a copy by lanes */
	pthread_mutex_t streams; /* held while one is made */
	struct core_lane lanes[CORE_LANES_MAX];
};

/* Fill in *error if its status is none yet; whether the result is success. */
bool core_dma_check(struct core_dma *dma, struct core_error *error, const char *call, int result);

#define CORE_CUDA_CALL(error, dma, function, ...)                                                  \
	core_dma_check(dma, error, #function, (dma)->cuda.function(__VA_ARGS__))

/* Make the device's context the thread's, and the one from before again. */
bool core_dma_enter(struct core_dma *dma, struct core_error *error);
void core_dma_leave(struct core_dma *dma);

/* What a stream or a lane still lacks is made; what is there after a failure is used next time. */
bool core_dma_have_stream(struct core_dma *dma, void **stream, struct core_error *error);
bool core_dma_have_lane(struct core_dma *dma, struct core_lane *lane, struct core_error *error);

/* Chunks so small that every lane has some to overlap, and so large that each is worth its calls.
 */
size_t core_dma_chunk(size_t nbytes, unsigned int lanes);

#endif
