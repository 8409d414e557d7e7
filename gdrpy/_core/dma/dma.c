/* SPDX-License-Identifier: MIT */
#include "dma/private.h"

#include <stdlib.h>
#include <string.h>

#include "copy/parallel.h"

/* Constants of the CUDA driver API. */
#define STREAM_NON_BLOCKING 1
#define EVENT_DISABLE_TIMING 2
#define POINTER_MEMORY_TYPE 2
#define MEMORY_TYPE_HOST 1

/* Smaller chunks are not worth a lane's calls. */
#define SMALLEST_CHUNK (64 << 10)

bool core_dma_check(struct core_dma *dma, struct core_error *error, const char *call, int result)
{
	if (result && !error->status)
		core_cuda_fail(error, &dma->cuda, call, result, "copying by DMA");
	return !result;
}

struct core_dma *core_dma_open(void *context)
{
	struct core_dma *dma = calloc(1, sizeof(*dma));

	if (!dma || !core_cuda_find(&dma->cuda)) {
		free(dma);
		return NULL;
	}
	dma->context = context;
	pthread_mutex_init(&dma->staging, NULL);
	pthread_mutex_init(&dma->streams, NULL);
	return dma;
}

bool core_dma_enter(struct core_dma *dma, struct core_error *error)
{
	return CORE_CUDA_CALL(error, dma, cuCtxPushCurrent, dma->context);
}

void core_dma_leave(struct core_dma *dma)
{
	void *context;

	dma->cuda.cuCtxPopCurrent(&context);
}

/* The plural call returns type 0 for memory that CUDA does not know, ten times faster than an
 * error. */
static bool is_page_locked(struct core_dma *dma, const char *byte)
{
	int attribute = POINTER_MEMORY_TYPE;
	unsigned int type = 0;
	void *value = &type;

	return !dma->cuda.cuPointerGetAttributes(1, &attribute, &value, (uintptr_t)byte) &&
	       type == MEMORY_TYPE_HOST;
}

bool core_dma_reaches(struct core_dma *dma, const void *host, size_t nbytes)
{
	const char *first = host;

	return nbytes && is_page_locked(dma, first) && is_page_locked(dma, first + nbytes - 1);
}

bool core_dma_have_stream(struct core_dma *dma, void **stream, struct core_error *error)
{
	void *made = NULL;

	if (__atomic_load_n(stream, __ATOMIC_ACQUIRE))
		return true;
	pthread_mutex_lock(&dma->streams);
	if (!*stream && CORE_CUDA_CALL(error, dma, cuStreamCreate, &made, STREAM_NON_BLOCKING))
		__atomic_store_n(stream, made, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&dma->streams);
	return __atomic_load_n(stream, __ATOMIC_RELAXED);
}

bool core_dma_have_lane(struct core_dma *dma, struct core_lane *lane, struct core_error *error)
{
	bool there = core_dma_have_stream(dma, &lane->stream, error);

	for (int i = 0; i < 2 && there; i++) {
		struct core_staging *staging = &lane->staging[i];

		there = (staging->idle || CORE_CUDA_CALL(error, dma, cuEventCreate, &staging->idle,
							 EVENT_DISABLE_TIMING)) &&
			(staging->memory ||
			 CORE_CUDA_CALL(error, dma, cuMemHostAlloc, &staging->memory,
					CORE_STAGING_NBYTES, 0));
	}
	return there;
}

/* A copy by lanes, each of which takes chunk after chunk. */
struct job {
	struct core_dma *dma;
	uint64_t device;
	char *host;
	size_t nbytes, chunk;
	bool to_gpu;
	size_t taken;		  /* bytes of all chunks taken so far */
	struct core_error *error; /* of the first lane that failed */
	bool failed;
};

struct chunk {
	size_t at, nbytes;
};

/* Take the next chunk; false at the end or after an error. */
static bool take(struct job *job, struct chunk *chunk)
{
	if (__atomic_load_n(&job->failed, __ATOMIC_RELAXED))
		return false;
	chunk->at = __atomic_fetch_add(&job->taken, job->chunk, __ATOMIC_RELAXED);
	if (chunk->at >= job->nbytes)
		return false;
	chunk->nbytes = job->nbytes - chunk->at < job->chunk ? job->nbytes - chunk->at : job->chunk;
	return true;
}

static void write_by_lane(struct job *job, struct core_lane *lane, struct core_error *error)
{
	struct core_dma *dma = job->dma;
	struct chunk chunk;

	for (unsigned int turn = 0; take(job, &chunk); turn++) {
		struct core_staging *staging = &lane->staging[turn % 2];

		if (turn >= 2 && !CORE_CUDA_CALL(error, dma, cuEventSynchronize, staging->idle))
			break;
		memcpy(staging->memory, job->host + chunk.at, chunk.nbytes);
		if (!CORE_CUDA_CALL(error, dma, cuMemcpyHtoDAsync, job->device + chunk.at,
				    staging->memory, chunk.nbytes, lane->stream) ||
		    !CORE_CUDA_CALL(error, dma, cuEventRecord, staging->idle, lane->stream))
			break;
	}
	CORE_CUDA_CALL(error, dma, cuStreamSynchronize, lane->stream);
}

static void read_by_lane(struct job *job, struct core_lane *lane, struct core_error *error)
{
	struct core_dma *dma = job->dma;
	struct chunk chunk, coming;
	struct core_staging *from = NULL;
	bool more;

	/* While one chunk is copied out of staging, the next is in flight. */
	for (unsigned int turn = 0;; turn++) {
		struct core_staging *to = &lane->staging[turn % 2];

		more = take(job, &coming);
		if (more &&
		    (!CORE_CUDA_CALL(error, dma, cuMemcpyDtoHAsync, to->memory,
				     job->device + coming.at, coming.nbytes, lane->stream) ||
		     !CORE_CUDA_CALL(error, dma, cuEventRecord, to->idle, lane->stream)))
			break;
		if (from) {
			if (!CORE_CUDA_CALL(error, dma, cuEventSynchronize, from->idle))
				break;
			memcpy(job->host + chunk.at, from->memory, chunk.nbytes);
		}
		if (!more)
			return;
		from = to;
		chunk = coming;
	}
	CORE_CUDA_CALL(error, dma, cuStreamSynchronize, lane->stream);
}

static void run_lane(void *context, unsigned int number)
{
	struct job *job = context;
	struct core_lane *lane = &job->dma->lanes[number];
	struct core_error error;

	error.status = 0;
	if (core_dma_enter(job->dma, &error)) {
		if (core_dma_have_lane(job->dma, lane, &error))
			(job->to_gpu ? write_by_lane : read_by_lane)(job, lane, &error);
		core_dma_leave(job->dma);
	}
	if (error.status && !__atomic_exchange_n(&job->failed, true, __ATOMIC_RELAXED))
		*job->error = error;
}

size_t core_dma_chunk(size_t nbytes, unsigned int lanes)
{
	size_t chunk = lanes == 1 ? (nbytes + 1) / 2 : nbytes / (4 * lanes);

	if (chunk < SMALLEST_CHUNK)
		return SMALLEST_CHUNK;
	return chunk < CORE_STAGING_NBYTES ? chunk : CORE_STAGING_NBYTES;
}

static bool by_lanes(struct job *job, unsigned int lanes)
{
	struct core_dma *dma = job->dma;

	if (lanes > CORE_LANES_MAX)
		lanes = CORE_LANES_MAX;
	job->chunk = core_dma_chunk(job->nbytes, lanes);
	pthread_mutex_lock(&dma->staging);
	core_parallel(lanes, run_lane, job);
	pthread_mutex_unlock(&dma->staging);
	return !job->failed;
}

static bool copy_directly(const struct job *job)
{
	struct core_dma *dma = job->dma;

	return core_dma_have_stream(dma, &dma->stream, job->error) &&
	       (job->to_gpu ? CORE_CUDA_CALL(job->error, dma, cuMemcpyHtoDAsync, job->device,
					     job->host, job->nbytes, dma->stream)
			    : CORE_CUDA_CALL(job->error, dma, cuMemcpyDtoHAsync, job->host,
					     job->device, job->nbytes, dma->stream)) &&
	       CORE_CUDA_CALL(job->error, dma, cuStreamSynchronize, dma->stream);
}

bool core_dma_transfer(struct core_dma *dma, unsigned int lanes, uint64_t device, char *host,
		       size_t nbytes, bool to_gpu, struct core_error *error)
{
	struct job job = {.dma = dma,
			  .device = device,
			  .host = host,
			  .nbytes = nbytes,
			  .to_gpu = to_gpu,
			  .error = error};
	bool done;

	error->status = 0;
	if (lanes)
		return by_lanes(&job, lanes);
	if (!core_dma_enter(dma, error))
		return false;
	done = copy_directly(&job);
	core_dma_leave(dma);
	return done;
}
