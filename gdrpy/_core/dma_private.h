/* SPDX-License-Identifier: MIT */
/* What copies of bytes and copies of rows by DMA share. */
#ifndef GDRPY_DMA_PRIVATE_H
#define GDRPY_DMA_PRIVATE_H

#include <pthread.h>

#include "cudadriver.h"
#include "dma.h"

struct gdr_staging {
	void *memory;
	void *idle; /* an event: DMA has done with the memory */
};

struct gdr_dma {
	struct gdr_cuda cuda;
	void *context;
	void *direct; /* the stream of copies that need no staging */
	void *staged; /* and that of those that do */
	struct gdr_staging staging[2];
	pthread_mutex_t turn; /* held while staging is used */
};

/* Keep the first error; whether there was none. */
bool gdr_dma_check(struct gdr_dma_error *error, const char *call, int result);

#define GDR_CUDA_CALL(error, dma, function, ...)                                                   \
	gdr_dma_check(error, #function, (dma)->cuda.function(__VA_ARGS__))

/* Make the device's context the thread's, and the one from before again. */
bool gdr_dma_enter(struct gdr_dma *dma, struct gdr_dma_error *error);
void gdr_dma_leave(struct gdr_dma *dma);

/* What is lacking is made; what is there after a failure is used next time. */
bool gdr_dma_have_stream(struct gdr_dma *dma, void **stream, struct gdr_dma_error *error);
bool gdr_dma_have_staging(struct gdr_dma *dma, unsigned int number, struct gdr_dma_error *error);

/* Chunks so small that one is copied while the other is on its way, and each worth its calls. */
size_t gdr_dma_chunk(size_t nbytes, unsigned int threads);

#endif
