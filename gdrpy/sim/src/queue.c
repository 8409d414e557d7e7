/* SPDX-License-Identifier: MIT */
#include "queue.h"

#include <stdlib.h>

#include "capture.h"

static bool outstanding(const struct stream *stream)
{
	return stream->completed < stream->submitted;
}

struct point point_last(struct stream *stream)
{
	stream_get(stream);
	return (struct point){stream, stream->submitted};
}

bool point_reached(struct point point)
{
	return point.stream->completed >= point.sequence;
}

CUresult point_wait(struct point point)
{
	while (!point_reached(point))
		pthread_cond_wait(&sim.changed, &sim.lock);
	return context_state(point.stream->context);
}

static bool is_null_stream(const struct stream *stream)
{
	return stream == stream->context->null_stream;
}

/*
 * The legacy default stream and the blocking streams of its context wait for each other: an
 * operation of one comes after all earlier work of the other, if any is outstanding.
 */
static bool comes_after(const struct stream *stream, const struct stream *other)
{
	if (other == stream || other->context != stream->context || !outstanding(other))
		return false;
	if (stream->last_of_all)
		return true;
	return is_null_stream(stream)
		       ? !(other->flags & CU_STREAM_NON_BLOCKING)
		       : is_null_stream(other) && !(stream->flags & CU_STREAM_NON_BLOCKING);
}

static void operation_release(struct operation *operation)
{
	for (size_t i = 0; i < operation->after_count; i++)
		stream_put(operation->after[i].stream);
	free(operation->after);
	if (operation->release)
		operation->release(operation);
	else
		free(operation);
}

static void keep_operation(struct operation *operation)
{
	(void)operation;
}

/* Lists the points that the operation comes after. */
static CUresult find_points(struct stream *stream, struct operation *operation,
			    const struct point *point)
{
	size_t count = point != NULL;

	for (struct stream *other = streams; other; other = other->next)
		count += comes_after(stream, other);
	operation->after = NULL;
	operation->after_count = 0;
	if (!count)
		return CUDA_SUCCESS;
	operation->after = malloc(count * sizeof(*operation->after));
	if (!operation->after)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (point) {
		stream_get(point->stream);
		operation->after[operation->after_count++] = *point;
	}
	for (struct stream *other = streams; other; other = other->next)
		if (comes_after(stream, other))
			operation->after[operation->after_count++] = point_last(other);
	return CUDA_SUCCESS;
}

static bool has_turn(const struct stream *stream, const struct operation *operation)
{
	if (stream->completed + 1 != operation->sequence)
		return false;
	for (size_t i = 0; i < operation->after_count; i++)
		if (!point_reached(operation->after[i]) && !stream->cancelled)
			return false;
	return true;
}

static void execute(struct stream *stream, struct operation *operation)
{
	CUresult result = CUDA_SUCCESS;

	while (!has_turn(stream, operation))
		pthread_cond_wait(&sim.changed, &sim.lock);
	if (!stream->cancelled && stream->context->error == CUDA_SUCCESS)
		result = operation->run(stream, operation);
	if (result != CUDA_SUCCESS && !stream->cancelled)
		stream->context->error = result;
	stream->completed++;
	pthread_cond_broadcast(&sim.changed);
}

static CUresult execute_here(struct stream *stream, struct operation *operation)
{
	CUresult result;

	stream_get(stream);
	operation->sequence = ++stream->submitted;
	execute(stream, operation);
	operation_release(operation);
	result = stream->cancelled ? CUDA_ERROR_CONTEXT_IS_DESTROYED : stream->context->error;
	stream_put(stream);
	return result;
}

static void *work(void *argument)
{
	struct stream *stream = argument;

	pthread_mutex_lock(&sim.lock);
	while (stream->first || stream->open) {
		struct operation *operation = stream->first;

		if (!operation) {
			pthread_cond_wait(&sim.changed, &sim.lock);
			continue;
		}
		execute(stream, operation);
		stream->first = operation->next;
		if (!stream->first)
			stream->last = &stream->first;
		operation_release(operation);
	}
	stream_put(stream);
	pthread_mutex_unlock(&sim.lock);
	return NULL;
}

/* Detached: a process may end while its streams still wait. */
static CUresult start_worker(struct stream *stream)
{
	pthread_attr_t attributes;
	pthread_t thread;
	int error;

	if (stream->worker)
		return CUDA_SUCCESS;
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	stream_get(stream);
	error = pthread_create(&thread, &attributes, work, stream);
	pthread_attr_destroy(&attributes);
	if (error) {
		stream_put(stream);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	stream->worker = true;
	return CUDA_SUCCESS;
}

CUresult queue_run(struct stream *stream, struct operation *operation)
{
	operation->release = keep_operation;
	TRY(capture_allows_work(stream));
	TRY(find_points(stream, operation, NULL));
	return execute_here(stream, operation);
}

/* Refuses an operation of a captured stream, else lists the points that it comes after. */
static CUresult submittable(struct stream *stream, struct operation *operation,
			    const struct point *point)
{
	operation->after = NULL;
	operation->after_count = 0;
	TRY(capture_allows_work(stream));
	return find_points(stream, operation, point);
}

static CUresult queue(struct stream *stream, struct operation *operation, const struct point *point,
		      bool may_run_here)
{
	bool now = may_run_here && !outstanding(stream) && (!point || point_reached(*point));
	CUresult result = submittable(stream, operation, point);

	if (result == CUDA_SUCCESS && now && operation->after_count == (point != NULL))
		return execute_here(stream, operation);
	if (result == CUDA_SUCCESS)
		result = start_worker(stream);
	if (result != CUDA_SUCCESS) {
		operation_release(operation);
		return result;
	}
	operation->next = NULL;
	operation->sequence = ++stream->submitted;
	*stream->last = operation;
	stream->last = &operation->next;
	pthread_cond_broadcast(&sim.changed);
	return CUDA_SUCCESS;
}

CUresult queue_submit(struct stream *stream, struct operation *operation, const struct point *point)
{
	return queue(stream, operation, point, false);
}

CUresult queue_launch(struct stream *stream, struct operation *operation, const struct point *point)
{
	return queue(stream, operation, point, true);
}

CUresult queue_do_nothing(struct stream *stream, struct operation *operation)
{
	(void)stream;
	(void)operation;
	return CUDA_SUCCESS;
}

static CUresult wait_for_last(struct stream *stream)
{
	struct point last = point_last(stream);
	CUresult result = point_wait(last);

	stream_put(stream);
	return result;
}

CUresult queue_wait_stream(struct stream *stream)
{
	struct operation nothing = {.run = queue_do_nothing};

	return is_null_stream(stream) ? queue_run(stream, &nothing) : wait_for_last(stream);
}

/* Waits for each stream that existed at the start, in order of ids, which are never reused. */
CUresult queue_wait_context(struct context *context)
{
	uint64_t newest = sim_next_id();
	uint64_t done = 0;

	for (;;) {
		struct stream *next = NULL;

		for (struct stream *stream = streams; stream; stream = stream->next)
			if (stream->context == context && stream->id > done &&
			    stream->id < newest && (!next || stream->id < next->id))
				next = stream;
		if (!next)
			return context_state(context);
		done = next->id;
		wait_for_last(next);
	}
}

bool queue_is_idle(const struct stream *stream)
{
	if (outstanding(stream))
		return false;
	if (!is_null_stream(stream))
		return true;
	for (struct stream *other = streams; other; other = other->next)
		if (comes_after(stream, other))
			return false;
	return true;
}
