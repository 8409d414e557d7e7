/* SPDX-License-Identifier: MIT */
/* What copies of bytes and copies of rows by DMA share. */
#ifndef GDRPY_DMA_PRIVATE_H
#define GDRPY_DMA_PRIVATE_H

#include <pthread.h>

#include "cuda/driver.h"
#include "dma/dma.h"

struct gdr_staging {
	void *memory;
	void *idle; /* an event: DMA has done with the memory */
};

struct gdr_lane {
	void *stream;
	struct gdr_staging staging[2];
};

struct gdr_dma {
	struct gdr_cuda cuda;
	void *context;
	void *stream;		 /* of copies that need no staging */
	pthread_mutex_t staging; /* held by a copy by lanes */
	pthread_mutex_t streams; /* held while one is made */
	struct gdr_lane lanes[GDR_LANES_MAX];
};

/* Fill in *error if its status is none yet; whether the result is success. */
bool gdr_dma_check(struct gdr_dma *dma, struct gdr_error *error, const char *call, int result);

#define GDR_CUDA_CALL(error, dma, function, ...)                                                   \
	gdr_dma_check(dma, error, #function, (dma)->cuda.function(__VA_ARGS__))

/* Make the device's context the thread's, and the one from before again. */
bool gdr_dma_enter(struct gdr_dma *dma, struct gdr_error *error);
void gdr_dma_leave(struct gdr_dma *dma);

/* What a stream or a lane still lacks is made; what is there after a failure is used next time. */
bool gdr_dma_have_stream(struct gdr_dma *dma, void **stream, struct gdr_error *error);
bool gdr_dma_have_lane(struct gdr_dma *dma, struct gdr_lane *lane, struct gdr_error *error);

/* Chunks so small that every lane has some to overlap, and so large that each is worth its calls.
 */
size_t gdr_dma_chunk(size_t nbytes, unsigned int lanes);

#endif
