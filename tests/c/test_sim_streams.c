/* SPDX-License-Identifier: MIT */
/* Streams and events of the simulated driver: order, waiting, and ends that come early. */
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>

#include "test_sim.h"

static uint32_t *words; /* pinned, zero at the start of a test */

static void begin(void)
{
	start();
	OK(cuMemHostAlloc((void **)&words, 4096, 0));
}

static void end(void)
{
	OK(cuMemFreeHost(words));
	stop();
}

static CUdeviceptr at(unsigned int index)
{
	return (uintptr_t)&words[index];
}

static void set(unsigned int index, uint32_t value)
{
	__atomic_store_n(&words[index], value, __ATOMIC_RELEASE);
}

static uint32_t get(unsigned int index)
{
	return __atomic_load_n(&words[index], __ATOMIC_ACQUIRE);
}

static void work_behind_a_wait_starts_when_the_cpu_writes_the_word(void)
{
	CUstream stream;

	begin();
	stream = new_stream(CU_STREAM_NON_BLOCKING);
	OK(cuStreamWaitValue32_v2(stream, at(0), 1, CU_STREAM_WAIT_VALUE_GEQ));
	OK(cuStreamWriteValue32_v2(stream, at(1), 5, 0));
	CHECK_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
	CHECK_EQ(get(1), 0);
	set(0, 1);
	OK(cuStreamSynchronize(stream));
	OK(cuStreamQuery(stream));
	CHECK_EQ(get(1), 5);
	OK(cuStreamDestroy_v2(stream));
	end();
}

/*
 * Whether a stream's wait for `value` lets go of a word that is `found`. It ends with `release`.
 * Between a batch's write and the first look of its wait nobody gets into the driver: who sees the
 * write and then asks the driver is told what that look found.
 */
static bool lets_go(uint32_t found, unsigned int flags, uint32_t value, uint32_t release)
{
	CUstreamBatchMemOpParams batch[2] = {
		{.value = {CU_STREAM_MEM_OP_WRITE_VALUE_32, at(1), 1, 0, 0}},
		{.value = {CU_STREAM_MEM_OP_WAIT_VALUE_32, at(0), value, flags, 0}},
	};
	CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
	bool done;

	set(0, found);
	set(1, 0);
	OK(cuStreamBatchMemOp_v2(stream, 2, batch, 0));
	while (!get(1))
		sched_yield();
	done = cuStreamQuery(stream) == CUDA_SUCCESS;
	set(0, release);
	OK(cuStreamSynchronize(stream));
	OK(cuStreamDestroy_v2(stream));
	return done;
}

static void waits_compare_as_their_flags_say(void)
{
	begin();
	CHECK(lets_go(5, CU_STREAM_WAIT_VALUE_GEQ, 5, 5));
	CHECK(lets_go(0x80000004, CU_STREAM_WAIT_VALUE_GEQ, 5, 5));
	CHECK(lets_go(1, CU_STREAM_WAIT_VALUE_GEQ, 0xffffffff, 1));
	CHECK(!lets_go(4, CU_STREAM_WAIT_VALUE_GEQ, 5, 5));
	CHECK(!lets_go(0xffffffff, CU_STREAM_WAIT_VALUE_GEQ, 5, 5));
	CHECK(!lets_go(0x80000005, CU_STREAM_WAIT_VALUE_GEQ, 5, 5));
	CHECK(lets_go(5, CU_STREAM_WAIT_VALUE_EQ, 5, 5));
	CHECK(!lets_go(6, CU_STREAM_WAIT_VALUE_EQ, 5, 5));
	CHECK(lets_go(2, CU_STREAM_WAIT_VALUE_AND, 3, 3));
	CHECK(!lets_go(4, CU_STREAM_WAIT_VALUE_AND, 3, 3));
	CHECK(lets_go(0xffffff00, CU_STREAM_WAIT_VALUE_NOR, 0xf, 0));
	CHECK(!lets_go(0xfffffff0, CU_STREAM_WAIT_VALUE_NOR, 0xf, 0));
	end();
}

static void events_carry_order_from_one_stream_to_another(void)
{
	CUstream first, second;
	CUevent event;

	begin();
	first = new_stream(CU_STREAM_NON_BLOCKING);
	second = new_stream(CU_STREAM_NON_BLOCKING);
	OK(cuEventCreate(&event, 0));
	OK(cuStreamWaitValue32_v2(first, at(0), 1, CU_STREAM_WAIT_VALUE_EQ));
	OK(cuEventRecord(event, first));
	OK(cuStreamWaitEvent(second, event, 0));
	OK(cuStreamWriteValue32_v2(second, at(1), 1, 0));
	CHECK_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
	CHECK_EQ(get(1), 0);
	OK(cuEventDestroy_v2(event));
	set(0, 1);
	OK(cuStreamSynchronize(second));
	CHECK_EQ(get(1), 1);
	OK(cuStreamDestroy_v2(first));
	OK(cuStreamDestroy_v2(second));
	end();
}

static void a_captured_stream_takes_no_work(void)
{
	CUstream stream, blocking;
	CUgraph graph;

	begin();
	stream = new_stream(CU_STREAM_NON_BLOCKING);
	blocking = new_stream(0);
	OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	CHECK_EQ(cuStreamWriteValue32_v2(stream, at(0), 1, 0), CUDA_ERROR_NOT_SUPPORTED);
	CHECK_EQ(cuStreamWaitValue32_v2(stream, at(0), 1, 0), CUDA_ERROR_NOT_SUPPORTED);
	OK(cuStreamEndCapture(stream, &graph));
	OK(cuGraphDestroy(graph));
	CHECK_EQ(cuGraphDestroy(graph), CUDA_ERROR_INVALID_VALUE);

	OK(cuStreamBeginCapture_v2(blocking, CU_STREAM_CAPTURE_MODE_GLOBAL));
	CHECK_EQ(cuStreamWriteValue32_v2(NULL, at(0), 1, 0), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	CHECK_EQ(cuStreamWriteValue32_v2(blocking, at(0), 1, 0),
		 CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	CHECK_EQ(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	CHECK_EQ(graph == NULL, 1);
	OK(cuStreamWriteValue32_v2(blocking, at(0), 1, 0));
	OK(cuStreamSynchronize(blocking));
	CHECK_EQ(get(0), 1);

	OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuStreamDestroy_v2(stream));
	OK(cuStreamDestroy_v2(blocking));
	OK(cuCtxSynchronize());
	end();
}

static void an_event_of_a_context_waits_for_all_its_streams(void)
{
	CUstream first, second, third;
	CUcontext context;
	CUevent event;

	begin();
	OK(cuCtxGetCurrent(&context));
	first = new_stream(CU_STREAM_NON_BLOCKING);
	second = new_stream(0);
	third = new_stream(CU_STREAM_NON_BLOCKING);
	OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	OK(cuCtxRecordEvent(context, event));
	OK(cuEventQuery(event));
	OK(cuStreamWaitValue32_v2(first, at(0), 1, CU_STREAM_WAIT_VALUE_EQ));
	OK(cuStreamWaitValue32_v2(second, at(1), 1, CU_STREAM_WAIT_VALUE_EQ));
	OK(cuCtxRecordEvent(context, event));
	OK(cuStreamWaitEvent(third, event, 0));
	OK(cuStreamWriteValue32_v2(third, at(2), 1, 0));
	set(0, 1);
	OK(cuStreamSynchronize(first));
	CHECK_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
	CHECK_EQ(get(2), 0);
	OK(cuStreamWaitValue32_v2(first, at(3), 1, CU_STREAM_WAIT_VALUE_EQ));
	set(1, 1);
	OK(cuEventSynchronize(event));
	OK(cuEventQuery(event));
	OK(cuStreamSynchronize(third));
	CHECK_EQ(get(2), 1);
	CHECK_EQ(cuStreamQuery(first), CUDA_ERROR_NOT_READY);
	set(3, 1);
	OK(cuEventDestroy_v2(event));
	OK(cuStreamDestroy_v2(first));
	OK(cuStreamDestroy_v2(second));
	OK(cuStreamDestroy_v2(third));
	end();
}

static void the_null_stream_waits_for_blocking_streams_only(void)
{
	CUstream blocking, other;
	CUevent null_event, other_event;

	begin();
	blocking = new_stream(0);
	other = new_stream(CU_STREAM_NON_BLOCKING);
	OK(cuEventCreate(&null_event, 0));
	OK(cuEventCreate(&other_event, 0));
	OK(cuStreamWaitValue32_v2(blocking, at(0), 1, CU_STREAM_WAIT_VALUE_EQ));
	OK(cuEventRecord(null_event, NULL));
	OK(cuEventRecord(other_event, other));
	OK(cuEventSynchronize(other_event));
	CHECK_EQ(cuEventQuery(null_event), CUDA_ERROR_NOT_READY);
	CHECK_EQ(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
	set(0, 1);
	OK(cuStreamSynchronize(NULL));
	OK(cuEventQuery(null_event));
	OK(cuEventDestroy_v2(null_event));
	OK(cuEventDestroy_v2(other_event));
	OK(cuStreamDestroy_v2(blocking));
	OK(cuStreamDestroy_v2(other));
	end();
}

static void blocking_streams_wait_for_the_null_stream(void)
{
	CUstream blocking;
	CUevent event;

	begin();
	blocking = new_stream(0);
	OK(cuEventCreate(&event, 0));
	OK(cuStreamWaitValue32_v2(NULL, at(0), 1, CU_STREAM_WAIT_VALUE_EQ));
	OK(cuEventRecord(event, blocking));
	CHECK_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
	set(0, 1);
	OK(cuEventSynchronize(event));
	OK(cuEventDestroy_v2(event));
	OK(cuStreamDestroy_v2(blocking));
	end();
}

static void a_stream_with_a_wait_that_never_ends_can_be_destroyed(void)
{
	CUstream stream;
	CUcontext context;

	begin();
	OK(cuCtxCreate_v2(&context, 0, 0));
	stream = new_stream(CU_STREAM_NON_BLOCKING);
	OK(cuStreamWaitValue32_v2(stream, at(0), 1, CU_STREAM_WAIT_VALUE_EQ));
	OK(cuStreamWriteValue32_v2(stream, at(1), 1, 0));
	OK(cuStreamDestroy_v2(stream));
	OK(cuCtxDestroy_v2(context));
	CHECK_EQ(get(1), 0);
	end();
}

static void *synchronize(void *stream)
{
	return (void *)(uintptr_t)cuStreamSynchronize(stream);
}

static void whoever_waits_is_told_that_the_context_is_destroyed(void)
{
	CUstream stream;
	CUcontext context;
	pthread_t thread;
	uint64_t calls;
	void *result;

	begin();
	OK(cuCtxCreate_v2(&context, 0, 0));
	stream = new_stream(CU_STREAM_NON_BLOCKING);
	OK(cuStreamWaitValue32_v2(stream, at(0), 1, CU_STREAM_WAIT_VALUE_EQ));
	calls = gdrsim_call_count("cuStreamSynchronize");
	CHECK_EQ(pthread_create(&thread, NULL, synchronize, stream), 0);
	while (gdrsim_call_count("cuStreamSynchronize") == calls)
		sched_yield();
	OK(cuCtxDestroy_v2(context));
	CHECK_EQ(pthread_join(thread, &result), 0);
	CHECK_EQ((uintptr_t)result, CUDA_ERROR_CONTEXT_IS_DESTROYED);
	end();
}

static void memory_that_goes_away_under_a_wait_ends_the_context(void)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr pointer;
	CUcontext context;
	CUstream stream;

	begin();
	OK(cuCtxCreate_v2(&context, 0, 0));
	handle = create(GRANULE);
	pointer = map(handle, GRANULE);
	stream = new_stream(CU_STREAM_NON_BLOCKING);
	OK(cuStreamWaitValue32_v2(stream, pointer, 1, CU_STREAM_WAIT_VALUE_EQ));
	unmap(pointer, GRANULE);
	CHECK_EQ(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	CHECK_EQ(cuMemAlloc_v2(&pointer, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
	OK(cuCtxDestroy_v2(context));
	OK(cuMemRelease(handle));
	OK(cuMemAlloc_v2(&pointer, 4));
	OK(cuMemFree_v2(pointer));
	end();
}

static void pageable_memory_is_read_before_an_async_copy_returns(void)
{
	CUdeviceptr pointer;
	CUstream stream;
	char bytes[8] = "before";
	char found[8];

	begin();
	pointer = allocate(8);
	stream = new_stream(CU_STREAM_NON_BLOCKING);
	OK(cuStreamWaitValue32_v2(stream, at(0), 1, CU_STREAM_WAIT_VALUE_EQ));
	OK(cuMemcpyHtoDAsync_v2(pointer, bytes, sizeof(bytes), stream));
	memcpy(bytes, "after!!", 8);
	set(0, 1);
	OK(cuMemcpyDtoHAsync_v2(found, pointer, sizeof(found), stream));
	CHECK_STR_EQ(found, "before");
	OK(cuMemFree_v2(pointer));
	OK(cuStreamDestroy_v2(stream));
	end();
}

static void pinned_memory_is_read_when_the_copy_is_done(void)
{
	CUdeviceptr pointer;
	CUstream stream;
	uint32_t found;

	begin();
	pointer = allocate(4);
	stream = new_stream(CU_STREAM_NON_BLOCKING);
	set(1, 1);
	OK(cuStreamWaitValue32_v2(stream, at(0), 1, CU_STREAM_WAIT_VALUE_EQ));
	OK(cuMemcpyHtoDAsync_v2(pointer, &words[1], 4, stream));
	set(1, 2);
	set(0, 1);
	OK(cuStreamSynchronize(stream));
	OK(cuMemcpyDtoH_v2(&found, pointer, 4));
	CHECK_EQ(found, 2);
	OK(cuMemFree_v2(pointer));
	OK(cuStreamDestroy_v2(stream));
	end();
}

struct called {
	CUresult alloc, count;
};

static void call_the_driver(void *user_data)
{
	struct called *called = user_data;
	CUdeviceptr pointer;
	int count;

	called->alloc = cuMemAlloc_v2(&pointer, 4);
	called->count = cuDeviceGetCount(&count);
}

static void a_function_in_a_stream_may_not_call_the_driver(void)
{
	struct called called = {0};
	CUstream stream;

	begin();
	stream = new_stream(0);
	OK(cuLaunchHostFunc(stream, call_the_driver, &called));
	OK(cuStreamSynchronize(stream));
	CHECK_EQ(called.alloc, CUDA_ERROR_NOT_PERMITTED);
	CHECK_EQ(called.count, CUDA_ERROR_NOT_PERMITTED);
	OK(cuStreamDestroy_v2(stream));
	end();
}

static void a_batch_with_one_bad_operation_does_nothing(void)
{
	CUstreamBatchMemOpParams batch[2] = {
		{.value = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32, .value = 9}},
		{.value = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32, .value = 9}},
	};

	begin();
	batch[0].value.address = at(1);
	batch[1].value.address = at(2) + 1;
	CHECK_EQ(cuStreamBatchMemOp_v2(NULL, 2, batch, 0), CUDA_ERROR_INVALID_VALUE);
	OK(cuCtxSynchronize());
	CHECK_EQ(get(1), 0);
	batch[1].value.address = at(2);
	OK(cuStreamBatchMemOp_v2(NULL, 2, batch, 0));
	OK(cuCtxSynchronize());
	CHECK_EQ(get(1), 9);
	CHECK_EQ(get(2), 9);
	end();
}

CHECK_MAIN(TEST(work_behind_a_wait_starts_when_the_cpu_writes_the_word),
	   TEST(waits_compare_as_their_flags_say),
	   TEST(events_carry_order_from_one_stream_to_another),
	   TEST(a_captured_stream_takes_no_work),
	   TEST(an_event_of_a_context_waits_for_all_its_streams),
	   TEST(the_null_stream_waits_for_blocking_streams_only),
	   TEST(blocking_streams_wait_for_the_null_stream),
	   TEST(a_stream_with_a_wait_that_never_ends_can_be_destroyed),
	   TEST(whoever_waits_is_told_that_the_context_is_destroyed),
	   TEST(memory_that_goes_away_under_a_wait_ends_the_context),
	   TEST(pageable_memory_is_read_before_an_async_copy_returns),
	   TEST(pinned_memory_is_read_when_the_copy_is_done),
	   TEST(a_function_in_a_stream_may_not_call_the_driver),
	   TEST(a_batch_with_one_bad_operation_does_nothing))
