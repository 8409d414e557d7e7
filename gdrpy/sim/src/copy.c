/* SPDX-License-Identifier: MIT */
#include "copy.h"

#include <stdlib.h>
#include <string.h>

#include "range.h"

struct copy_operation {
	struct operation operation;
	struct copy copy;
	unsigned char staged[]; /* the bytes of a pageable source */
};

struct span copy_span(uint64_t start, uint64_t pitch, uint64_t width, uint64_t height)
{
	uint64_t size;

	if (!width || !height)
		return (struct span){start, 0};
	if (__builtin_mul_overflow(pitch, height - 1, &size) ||
	    __builtin_add_overflow(size, width, &size))
		size = UINT64_MAX;
	return (struct span){start, size};
}

static struct span side_span(const struct side *side, const struct copy *copy)
{
	return copy_span(side->start, side->pitch, copy->width, copy->height);
}

static CUresult check_side(const struct side *side, const struct copy *copy,
			   const struct context *context, unsigned int rights)
{
	const struct device *device = side->device ? side->device : context->device;

	return access_check(device, side_span(side, copy), rights, side->pageable);
}

static CUresult check(const struct context *context, const struct copy *copy)
{
	TRY(check_side(&copy->destination, copy, context, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
	return check_side(&copy->source, copy, context, CU_MEM_ACCESS_FLAGS_PROT_READ);
}

/* A GPU keeps no order within a copy. Here it is the one that spoils bytes which overlap. */
static uint64_t nth(uint64_t i, uint64_t count, bool forward)
{
	return forward ? i : count - 1 - i;
}

static void move_row(unsigned char *to, const unsigned char *from, uint64_t size)
{
	bool forward = to > from;

	if ((uint64_t)(forward ? to - from : from - to) >= size) {
		memcpy(to, from, size);
		return;
	}
	for (uint64_t i = 0; i < size; i++) {
		uint64_t at = nth(i, size, forward);

		to[at] = from[at];
	}
}

static void move_rows(const struct copy *copy)
{
	const struct side *to = &copy->destination, *from = &copy->source;

	/* For no bytes the pointers may be invalid, which memcpy does not allow. */
	if (!copy->width)
		return;
	for (uint64_t i = 0; i < copy->height; i++) {
		uint64_t row = nth(i, copy->height, to->start > from->start);

		move_row((unsigned char *)(uintptr_t)(to->start + row * to->pitch),
			 (const unsigned char *)(uintptr_t)(from->start + row * from->pitch),
			 copy->width);
	}
}

static CUresult run_copy(struct stream *stream, struct operation *operation)
{
	const struct copy *copy = &((struct copy_operation *)operation)->copy;
	struct access access = {
		.destination = side_span(&copy->destination, copy),
		.source = side_span(&copy->source, copy),
	};

	/* The memory may have been freed since the copy was submitted. */
	if (check(stream->context, copy) != CUDA_SUCCESS)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	access_begin(&access);
	pthread_mutex_unlock(&sim.lock);
	move_rows(copy);
	pthread_mutex_lock(&sim.lock);
	access_end(&access);
	return CUDA_SUCCESS;
}

CUresult copy_run(CUstream handle, struct copy copy)
{
	struct copy_operation operation = {.operation.run = run_copy, .copy = copy};
	struct stream *stream;

	TRY(stream_use(handle, &stream));
	TRY(check(stream->context, &copy));
	return queue_run(stream, &operation.operation);
}

static bool is_pageable(const struct side *side)
{
	return side->pageable && !range_at(side->start);
}

/* Copies the source's rows into the operation, packed. The stream may be gone after this. */
static void stage(struct copy_operation *operation)
{
	struct side staged = {
		.start = (uintptr_t)operation->staged,
		.pitch = operation->copy.width,
		.pageable = true,
	};
	struct copy fetch = operation->copy;

	fetch.destination = staged;
	pthread_mutex_unlock(&sim.lock);
	move_rows(&fetch);
	pthread_mutex_lock(&sim.lock);
	operation->copy.source = staged;
}

CUresult copy_queue(CUstream handle, struct copy copy, queue_function *queue)
{
	struct copy_operation *operation;
	struct stream *stream;
	uint64_t staged = 0;
	CUresult result;

	if (is_pageable(&copy.destination))
		return copy_run(handle, copy);
	TRY(stream_use(handle, &stream));
	TRY(check(stream->context, &copy));
	if (is_pageable(&copy.source))
		staged = copy.width * copy.height;
	operation = malloc(sizeof(*operation) + staged);
	if (!operation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	operation->operation = (struct operation){.run = run_copy};
	operation->copy = copy;
	if (staged) {
		stage(operation);
		result = stream_use(handle, &stream);
		if (result != CUDA_SUCCESS) {
			free(operation);
			return result;
		}
	}
	return queue(stream, &operation->operation, NULL);
}
