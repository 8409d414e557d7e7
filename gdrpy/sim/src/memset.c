/* SPDX-License-Identifier: MIT */
/* Filling memory. */
#include <stdlib.h>
#include <string.h>

#include "access.h"
#include "copy.h"
#include "queue.h"
#include "range.h"

struct fill {
	uint64_t start;
	uint64_t pitch; /* from row to row; any for one row */
	unsigned int element;
	uint32_t value;
	uint64_t width; /* in elements */
	uint64_t height;
};

struct fill_operation {
	struct operation operation;
	struct fill fill;
};

static struct span fill_span(const struct fill *fill)
{
	uint64_t width;

	if (__builtin_mul_overflow(fill->width, fill->element, &width))
		width = UINT64_MAX;
	return copy_span(fill->start, fill->pitch, width, fill->height);
}

static CUresult check_access(const struct context *context, const struct fill *fill)
{
	return access_check(context->device, fill_span(fill), CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
			    false);
}

static void fill_row(uint64_t start, const struct fill *fill)
{
	void *row = (void *)(uintptr_t)start;

	switch (fill->element) {
	case 1:
		memset(row, (int)fill->value, fill->width);
		break;
	case 2:
		for (uint64_t i = 0; i < fill->width; i++)
			((uint16_t *)row)[i] = (uint16_t)fill->value;
		break;
	default:
		for (uint64_t i = 0; i < fill->width; i++)
			((uint32_t *)row)[i] = fill->value;
	}
}

static CUresult run_fill(struct stream *stream, struct operation *operation)
{
	const struct fill *fill = &((struct fill_operation *)operation)->fill;
	struct access access = {.destination = fill_span(fill)};

	if (check_access(stream->context, fill) != CUDA_SUCCESS)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	if (!fill->width)
		return CUDA_SUCCESS;
	access_begin(&access);
	pthread_mutex_unlock(&sim.lock);
	for (uint64_t row = 0; row < fill->height; row++)
		fill_row(fill->start + row * fill->pitch, fill);
	pthread_mutex_lock(&sim.lock);
	access_end(&access);
	return CUDA_SUCCESS;
}

static CUresult check(const struct context *context, const struct fill *fill)
{
	REQUIRE(fill->start % fill->element == 0);
	REQUIRE(fill->height <= 1 ||
		(fill->pitch % fill->element == 0 && fill->pitch / fill->element >= fill->width));
	return check_access(context, fill);
}

static CUresult submit(CUstream handle, struct fill fill, queue_function *queue)
{
	struct fill_operation *operation;
	struct stream *stream;

	TRY(stream_use(handle, &stream));
	TRY(check(stream->context, &fill));
	operation = malloc(sizeof(*operation));
	if (!operation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	operation->operation = (struct operation){.run = run_fill};
	operation->fill = fill;
	return queue(stream, &operation->operation, NULL);
}

/* The functions without a stream wait only when they fill host memory. */
static CUresult fill_legacy(struct fill fill)
{
	const struct range *range = range_at(fill.start);
	bool waits = range && range_is_host(range);
	struct stream *stream;

	TRY(submit(NULL, fill, queue_launch));
	if (!waits)
		return CUDA_SUCCESS;
	TRY(stream_use(NULL, &stream));
	return queue_wait_stream(stream);
}

/* The functions for elements of one size: for a run of them or for rows, without or in a stream. */
#define FILL_FUNCTIONS(bits, type)                                                                 \
	CUresult cuMemsetD##bits##_v2(CUdeviceptr dst, type value, size_t count)                   \
	{                                                                                          \
		API(cuMemsetD##bits##_v2, NEEDS_CONTEXT);                                          \
		return fill_legacy((struct fill){dst, 0, bits / 8, value, count, 1});              \
	}                                                                                          \
	CUresult cuMemsetD##bits##Async(CUdeviceptr dst, type value, size_t count,                 \
					CUstream stream)                                           \
	{                                                                                          \
		API(cuMemsetD##bits##Async, NEEDS_INIT);                                           \
		return submit(stream, (struct fill){dst, 0, bits / 8, value, count, 1},            \
			      queue_submit);                                                       \
	}                                                                                          \
	CUresult cuMemsetD2D##bits##_v2(CUdeviceptr dst, size_t pitch, type value, size_t width,   \
					size_t height)                                             \
	{                                                                                          \
		API(cuMemsetD2D##bits##_v2, NEEDS_CONTEXT);                                        \
		return fill_legacy((struct fill){dst, pitch, bits / 8, value, width, height});     \
	}                                                                                          \
	CUresult cuMemsetD2D##bits##Async(CUdeviceptr dst, size_t pitch, type value, size_t width, \
					  size_t height, CUstream stream)                          \
	{                                                                                          \
		API(cuMemsetD2D##bits##Async, NEEDS_INIT);                                         \
		return submit(stream, (struct fill){dst, pitch, bits / 8, value, width, height},   \
			      queue_submit);                                                       \
	}

FILL_FUNCTIONS(8, unsigned char)
FILL_FUNCTIONS(16, unsigned short)
FILL_FUNCTIONS(32, unsigned int)
