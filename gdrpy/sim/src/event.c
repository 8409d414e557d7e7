/* SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <time.h>

#include "capture.h"
#include "queue.h"

#define CREATE_FLAGS (CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS)

/* One recording, shared by the event and the operation that will stamp it. */
struct record {
	unsigned int references;
	struct point point;
	double milliseconds; /* when the point was reached */
};

struct event {
	struct event *next;
	struct context *context;
	unsigned int flags;
	struct record *record; /* the last; NULL before the first */
};

struct record_operation {
	struct operation operation;
	struct record *record;
};

static struct event *events;

static void record_put(struct record *record)
{
	if (!record || --record->references)
		return;
	stream_put(record->point.stream);
	free(record);
}

static CUresult run_record(struct stream *stream, struct operation *operation)
{
	struct record *record = ((struct record_operation *)operation)->record;
	struct timespec now;

	(void)stream;
	clock_gettime(CLOCK_MONOTONIC, &now);
	record->milliseconds = (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
	return CUDA_SUCCESS;
}

static void release_record(struct operation *operation)
{
	record_put(((struct record_operation *)operation)->record);
	free(operation);
}

static CUresult event_use(CUevent handle)
{
	if (!handle)
		return CUDA_ERROR_INVALID_HANDLE;
	for (struct event *event = events; event; event = event->next)
		if (event == handle)
			return context_state(event->context);
	sim_no_such("event", handle);
}

static void event_free(struct event *event)
{
	struct event **link = &events;

	while (*link != event)
		link = &(*link)->next;
	*link = event->next;
	record_put(event->record);
	free(event);
}

void event_free_all(struct context *context)
{
	struct event *next;

	for (struct event *event = events; event; event = next) {
		next = event->next;
		if (event->context == context)
			event_free(event);
	}
}

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
	API(cuEventCreate, NEEDS_CONTEXT);
	struct event *created;

	REQUIRE(event && !(flags & ~(unsigned int)CREATE_FLAGS));
	if (flags & CU_EVENT_INTERPROCESS)
		return flags & CU_EVENT_DISABLE_TIMING ? CUDA_ERROR_NOT_SUPPORTED
						       : CUDA_ERROR_INVALID_VALUE;
	created = calloc(1, sizeof(*created));
	if (!created)
		return CUDA_ERROR_OUT_OF_MEMORY;
	created->context = api_context;
	created->flags = flags;
	created->next = events;
	events = created;
	*event = created;
	return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event)
{
	API(cuEventDestroy_v2, NEEDS_INIT);

	TRY(event_use(event));
	event_free(event);
	return CUDA_SUCCESS;
}

static CUresult record_in(struct stream *stream, struct event *event)
{
	struct record_operation *operation;
	struct record *record;
	CUresult result;

	if (stream->context != event->context)
		return CUDA_ERROR_INVALID_HANDLE;
	record = calloc(1, sizeof(*record));
	operation = calloc(1, sizeof(*operation));
	if (!record || !operation) {
		free(record);
		free(operation);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	record->references = 2;
	record->point = point_last(stream);
	record->point.sequence++; /* that of this operation */
	operation->operation.run = run_record;
	operation->operation.release = release_record;
	operation->record = record;
	result = queue_launch(stream, &operation->operation, NULL);
	if (result != CUDA_SUCCESS) {
		record_put(record);
		return result;
	}
	record_put(event->record);
	event->record = record;
	return CUDA_SUCCESS;
}

static CUresult event_record(CUevent event, CUstream handle)
{
	struct stream *stream;

	TRY(event_use(event));
	TRY(stream_use(handle, &stream));
	return record_in(stream, event);
}

/* Records in a new stream, which comes after all others and is freed with the recording. */
CUresult cuCtxRecordEvent(CUcontext handle, CUevent event)
{
	API(cuCtxRecordEvent, NEEDS_INIT);
	struct context *context;
	struct stream *stream;
	CUresult result;

	TRY(context_use(handle, &context));
	TRY(event_use(event));
	TRY(capture_allows_context(context));
	stream = stream_new(context, CU_STREAM_NON_BLOCKING, STREAM_LEAST_PRIORITY);
	if (!stream)
		return CUDA_ERROR_OUT_OF_MEMORY;
	stream->last_of_all = true;
	result = record_in(stream, event);
	stream_close(stream);
	return result;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
	API(cuEventRecord, NEEDS_INIT);
	return event_record(event, stream);
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags)
{
	API(cuEventRecordWithFlags, NEEDS_INIT);

	REQUIRE(!(flags & ~(unsigned int)CU_EVENT_RECORD_EXTERNAL));
	/* External is for streams that are being captured into a graph. */
	return flags ? CUDA_ERROR_ILLEGAL_STATE : event_record(event, stream);
}

static bool event_done(const struct event *event)
{
	return !event->record || point_reached(event->record->point);
}

CUresult cuEventQuery(CUevent event)
{
	API(cuEventQuery, NEEDS_INIT);

	TRY(event_use(event));
	TRY(capture_allows_unsafe());
	return event_done(event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event)
{
	API(cuEventSynchronize, NEEDS_INIT);
	struct record *record;
	CUresult result;

	TRY(event_use(event));
	TRY(capture_allows_unsafe());
	if (!event->record)
		return CUDA_SUCCESS;
	record = event->record;
	record->references++;
	result = point_wait(record->point);
	record_put(record);
	return result;
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int flags)
{
	API(cuStreamWaitEvent, NEEDS_INIT);
	struct operation *operation;
	struct stream *stream;

	REQUIRE(!(flags & ~(unsigned int)CU_EVENT_WAIT_EXTERNAL));
	TRY(event_use(event));
	TRY(stream_use(handle, &stream));
	if (flags)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (event_done(event))
		return CUDA_SUCCESS;
	operation = calloc(1, sizeof(*operation));
	if (!operation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	operation->run = queue_do_nothing;
	return queue_submit(stream, operation, &event->record->point);
}

static CUresult elapsed(float *milliseconds, CUevent start, CUevent end)
{
	TRY(event_use(start));
	TRY(event_use(end));
	REQUIRE(milliseconds);
	if (!start->record || !end->record || (start->flags | end->flags) & CU_EVENT_DISABLE_TIMING)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!event_done(start) || !event_done(end))
		return CUDA_ERROR_NOT_READY;
	*milliseconds = (float)(end->record->milliseconds - start->record->milliseconds);
	return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
	API(cuEventElapsedTime, NEEDS_INIT);
	return elapsed(milliseconds, start, end);
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
	API(cuEventElapsedTime_v2, NEEDS_INIT);
	return elapsed(milliseconds, start, end);
}
