/* SPDX-License-Identifier: MIT */
#include "dma_private.h"

#include <stdlib.h>

#include "parallel.h"

/* CUDA's numbers. */
#define STREAM_NON_BLOCKING 1
#define EVENT_DISABLE_TIMING 2
#define POINTER_MEMORY_TYPE 2
#define MEMORY_TYPE_HOST 1

/* What is worth the calls of a chunk, and what is worth waking threads for each. */
#define SMALLEST_CHUNK (64 << 10)
#define SMALLEST_SHARED (1 << 20)

bool gdr_dma_check(struct gdr_dma_error *error, const char *call, int result)
{
	if (result && !error->result)
		*error = (struct gdr_dma_error){call, result};
	return !result;
}

struct gdr_dma *gdr_dma_open(void *context)
{
	struct gdr_dma *dma = calloc(1, sizeof(*dma));

	if (!dma || !gdr_cuda_find(&dma->cuda)) {
		free(dma);
		return NULL;
	}
	dma->context = context;
	pthread_mutex_init(&dma->turn, NULL);
	return dma;
}

bool gdr_dma_enter(struct gdr_dma *dma, struct gdr_dma_error *error)
{
	return GDR_CUDA_CALL(error, dma, cuCtxPushCurrent, dma->context);
}

void gdr_dma_leave(struct gdr_dma *dma)
{
	void *context;

	dma->cuda.cuCtxPopCurrent(&context);
}

/* The plural call answers type 0 for what CUDA does not know, ten times as fast as an error. */
static bool is_page_locked(struct gdr_dma *dma, const char *byte)
{
	int attribute = POINTER_MEMORY_TYPE;
	unsigned int type = 0;
	void *value = &type;

	return !dma->cuda.cuPointerGetAttributes(1, &attribute, &value, (uintptr_t)byte) &&
	       type == MEMORY_TYPE_HOST;
}

bool gdr_dma_reaches(struct gdr_dma *dma, const void *host, size_t nbytes)
{
	const char *first = host;

	return nbytes && is_page_locked(dma, first) && is_page_locked(dma, first + nbytes - 1);
}

bool gdr_dma_have_stream(struct gdr_dma *dma, void **stream, struct gdr_dma_error *error)
{
	return *stream || GDR_CUDA_CALL(error, dma, cuStreamCreate, stream, STREAM_NON_BLOCKING);
}

bool gdr_dma_have_staging(struct gdr_dma *dma, unsigned int number, struct gdr_dma_error *error)
{
	struct gdr_staging *staging = &dma->staging[number];

	return gdr_dma_have_stream(dma, &dma->staged, error) &&
	       (staging->idle ||
		GDR_CUDA_CALL(error, dma, cuEventCreate, &staging->idle, EVENT_DISABLE_TIMING)) &&
	       (staging->memory ||
		GDR_CUDA_CALL(error, dma, cuMemHostAlloc, &staging->memory, GDR_STAGING_NBYTES, 0));
}

size_t gdr_dma_chunk(size_t nbytes, unsigned int threads)
{
	size_t least = threads > 1 ? SMALLEST_SHARED : SMALLEST_CHUNK;
	size_t most = threads > 1 ? GDR_STAGING_NBYTES : SMALLEST_SHARED;
	size_t half = (nbytes + 1) / 2;

	if (half < least)
		return least;
	return half < most ? half : most;
}

/* A copy through staging, which this thread has its turn with. */
struct staged {
	struct gdr_dma *dma;
	unsigned int threads;
	uint64_t device;
	char *host;
	size_t nbytes, chunk;
	struct gdr_dma_error *error;
};

/* Between ordinary memory and staging. */
static void move(const struct staged *copy, void *to, const void *from, size_t nbytes)
{
	gdr_copy_to_mapping_by(copy->threads, GDR_MAPPING_CACHED, to, from, nbytes);
}

static size_t next_chunk(const struct staged *copy, size_t at)
{
	size_t left = copy->nbytes - at;

	return left < copy->chunk ? left : copy->chunk;
}

static void write_staged(const struct staged *copy)
{
	struct gdr_dma_error *error = copy->error;
	struct gdr_dma *dma = copy->dma;
	size_t at, nbytes;

	for (unsigned int turn = at = 0; at < copy->nbytes; turn++, at += nbytes) {
		struct gdr_staging *staging = &dma->staging[turn % 2];

		nbytes = next_chunk(copy, at);
		if (!gdr_dma_have_staging(dma, turn % 2, error) ||
		    (turn >= 2 && !GDR_CUDA_CALL(error, dma, cuEventSynchronize, staging->idle)))
			break;
		move(copy, staging->memory, copy->host + at, nbytes);
		if (!GDR_CUDA_CALL(error, dma, cuMemcpyHtoDAsync, copy->device + at,
				   staging->memory, nbytes, dma->staged) ||
		    !GDR_CUDA_CALL(error, dma, cuEventRecord, staging->idle, dma->staged))
			break;
	}
	/* Also after an error: nothing is to be on its way in staging that others use next. */
	if (dma->staged)
		GDR_CUDA_CALL(error, dma, cuStreamSynchronize, dma->staged);
}

static void read_staged(const struct staged *copy)
{
	struct gdr_dma_error *error = copy->error;
	struct gdr_dma *dma = copy->dma;
	struct gdr_staging *from = NULL;
	size_t at = 0, coming, came = 0;

	/* While one chunk is copied out of its staging memory the next is on its way. */
	for (unsigned int turn = 0;; turn++, at += coming, came = coming) {
		struct gdr_staging *to = &dma->staging[turn % 2];

		coming = next_chunk(copy, at);
		if (coming && (!gdr_dma_have_staging(dma, turn % 2, error) ||
			       !GDR_CUDA_CALL(error, dma, cuMemcpyDtoHAsync, to->memory,
					      copy->device + at, coming, dma->staged) ||
			       !GDR_CUDA_CALL(error, dma, cuEventRecord, to->idle, dma->staged)))
			break;
		if (from) {
			if (!GDR_CUDA_CALL(error, dma, cuEventSynchronize, from->idle))
				break;
			move(copy, copy->host + at - came, from->memory, came);
		}
		if (!coming)
			return;
		from = to;
	}
	if (dma->staged)
		GDR_CUDA_CALL(error, dma, cuStreamSynchronize, dma->staged);
}

static bool by_staging(struct staged *copy, void (*run)(const struct staged *copy))
{
	struct gdr_dma *dma = copy->dma;

	copy->chunk = gdr_dma_chunk(copy->nbytes, copy->threads);
	if (!gdr_dma_enter(dma, copy->error))
		return false;
	pthread_mutex_lock(&dma->turn);
	run(copy);
	pthread_mutex_unlock(&dma->turn);
	gdr_dma_leave(dma);
	return !copy->error->result;
}

bool gdr_dma_write(struct gdr_dma *dma, unsigned int threads, uint64_t device, const void *host,
		   size_t nbytes, struct gdr_dma_error *error)
{
	struct staged copy = {dma, threads, device, (char *)host, nbytes, .error = error};

	*error = (struct gdr_dma_error){0};
	if (threads)
		return by_staging(&copy, write_staged);
	if (!gdr_dma_enter(dma, error))
		return false;
	if (gdr_dma_have_stream(dma, &dma->direct, error) &&
	    GDR_CUDA_CALL(error, dma, cuMemcpyHtoDAsync, device, host, nbytes, dma->direct))
		GDR_CUDA_CALL(error, dma, cuStreamSynchronize, dma->direct);
	gdr_dma_leave(dma);
	return !error->result;
}

bool gdr_dma_read(struct gdr_dma *dma, unsigned int threads, void *host, uint64_t device,
		  size_t nbytes, struct gdr_dma_error *error)
{
	struct staged copy = {dma, threads, device, host, nbytes, .error = error};

	*error = (struct gdr_dma_error){0};
	if (threads)
		return by_staging(&copy, read_staged);
	if (!gdr_dma_enter(dma, error))
		return false;
	if (gdr_dma_have_stream(dma, &dma->direct, error) &&
	    GDR_CUDA_CALL(error, dma, cuMemcpyDtoHAsync, host, device, nbytes, dma->direct))
		GDR_CUDA_CALL(error, dma, cuStreamSynchronize, dma->direct);
	gdr_dma_leave(dma);
	return !error->result;
}
