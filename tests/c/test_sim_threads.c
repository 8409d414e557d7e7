/* SPDX-License-Identifier: MIT */
/* The simulated driver under many threads, and how its calls are made to fail. */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test_sim.h"

#define THREADS 4
#define ROUNDS 100

static void run_on_threads(void *(*function)(void *))
{
	pthread_t threads[THREADS];

	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, function, (void *)(i + 1)), 0);
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
}

static void *allocate_copy_free(void *number)
{
	CUstream per_thread = (CUstream)2;
	CUcontext context;
	void *pinned;

	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuMemHostAlloc(&pinned, 4096, 0));
	for (unsigned int i = 0; i < ROUNDS; i++) {
		size_t size = 4096 + (i % 7) * 300000;
		CUdeviceptr pointer = allocate(size);
		unsigned char value = (unsigned char)((uintptr_t)number * 16 + i);

		OK(cuMemsetD8Async(pointer, value, size, per_thread));
		OK(cuMemcpyDtoHAsync_v2(pinned, pointer + size - 4096, 4096, per_thread));
		OK(cuStreamSynchronize(per_thread));
		CHECK_EQ(((unsigned char *)pinned)[0], value);
		CHECK_EQ(((unsigned char *)pinned)[4095], value);
		OK(cuMemFree_v2(pointer));
	}
	OK(cuMemFreeHost(pinned));
	OK(cuDevicePrimaryCtxRelease_v2(0));
	return NULL;
}

static void threads_with_streams_of_their_own_do_not_disturb_each_other(void)
{
	size_t before;

	start();
	before = free_memory();
	run_on_threads(allocate_copy_free);
	CHECK_EQ(free_memory(), before);
	stop();
}

static CUdeviceptr contended;

/*
 * Whoever comes too late is refused; nobody touches memory that is gone. Each thread has a context,
 * so that no copy waits for another's between its check and its start.
 */
static void *map_copy_unmap(void *number)
{
	static unsigned char bytes[GRANULE];
	CUmemGenericAllocationHandle handle = create(GRANULE);
	CUcontext context;
	CUresult result;

	(void)number;
	OK(cuCtxCreate_v2(&context, 0, 0));
	for (int i = 0; i < ROUNDS; i++) {
		if (cuMemMap(contended, GRANULE, 0, handle, 0) == CUDA_SUCCESS)
			set_access(contended, GRANULE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
		result = cuMemcpyHtoD_v2(contended, bytes, sizeof(bytes));
		if (result != CUDA_SUCCESS)
			CHECK_EQ(result, CUDA_ERROR_INVALID_VALUE);
		OK(cuMemUnmap(contended, GRANULE));
	}
	OK(cuMemRelease(handle));
	OK(cuCtxDestroy_v2(context));
	return NULL;
}

static void an_unmap_waits_for_the_copies_that_are_running(void)
{
	start();
	contended = reserve(GRANULE);
	run_on_threads(map_copy_unmap);
	OK(cuMemAddressFree(contended, GRANULE));
	stop();
}

static void the_call_that_is_named_fails_once(void)
{
	CUdeviceptr pointer;

	start();
	CHECK_EQ(gdrsim_set_fault("cuMemAlloc:2,cuMemFree:1:719"), 0);
	pointer = allocate(4);
	CHECK_EQ(cuMemAlloc_v2(&(CUdeviceptr){0}, 4), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQ(cuMemFree_v2(pointer), 719);
	OK(cuMemFree_v2(pointer));
	OK(cuMemFree_v2(allocate(4)));
	stop();
}

static void a_fault_that_makes_no_sense_changes_nothing(void)
{
	static const char *const bad[] = {
		"cuMemAlloc",
		"cuMemAlloc:",
		"cuMemAlloc:0",
		"cuMemAlloc:-1",
		"cuMemAlloc:x",
		"cuMemAlloc:1:",
		"cuMemAlloc:1:0",
		"cuMemAlloc:1:2:3",
		"cuMemAlloc:1,",
		",cuMemAlloc:1",
		"cuMemAlloc_v2:1",
		"cuNothing:1",
		"cuMemAlloc:1 ",
		" cuMemAlloc:1",
		":1",
		"cuMemAlloc:1;cuMemFree:1",
		"cuMemAlloc: 1",
		"cuMemAlloc:+1",
		"cuMemAllo:1",
		"cuMemAlloc:99999999999",
	};
	CUdeviceptr pointer;

	start();
	CHECK_EQ(gdrsim_set_fault("cuMemAlloc:1"), 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		if (gdrsim_set_fault(bad[i]) != -EINVAL)
			FAIL("\"%s\" was taken", bad[i]);
	CHECK_EQ(cuMemAlloc_v2(&pointer, 4), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQ(gdrsim_set_fault("cuMemAlloc:1"), 0);
	CHECK_EQ(gdrsim_set_fault(""), 0);
	OK(cuMemFree_v2(allocate(4)));
	stop();
}

static void calls_are_counted_by_their_name(void)
{
	uint64_t before = gdrsim_call_count("cuMemFree");

	start();
	OK(cuMemFree_v2(0));
	CHECK_EQ(cuMemFree_v2(1), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(gdrsim_call_count("cuMemFree") - before, 2);
	CHECK(gdrsim_call_count("cuMemFree_v2") == UINT64_MAX);
	stop();
}

static volatile bool forking;

static void *call_without_pause(void *number)
{
	CUcontext context;

	(void)number;
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	while (forking)
		OK(cuMemFree_v2(allocate(4)));
	OK(cuDevicePrimaryCtxRelease_v2(0));
	return NULL;
}

static void check_child(void)
{
	CUdeviceptr pointer;
	int number;

	CHECK_EQ(cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
	CHECK_EQ(cuDeviceGetCount(&number), CUDA_ERROR_NOT_INITIALIZED);
	CHECK_EQ(cuMemAlloc_v2(&pointer, 4), CUDA_ERROR_NOT_INITIALIZED);
	CHECK_EQ(cuMemFree_v2(0), CUDA_ERROR_NOT_INITIALIZED);
	CHECK_EQ(cuCtxSynchronize(), CUDA_ERROR_NOT_INITIALIZED);
	OK(cuDriverGetVersion(&number));
	_exit(0);
}

static void a_forked_child_is_refused_and_never_hangs(void)
{
	pthread_t thread;
	int status;

	start();
	forking = true;
	CHECK_EQ(pthread_create(&thread, NULL, call_without_pause, NULL), 0);
	for (int i = 0; i < 20; i++) {
		pid_t child = fork();

		CHECK(child >= 0);
		if (!child)
			check_child();
		CHECK_EQ(waitpid(child, &status, 0), child);
		CHECK_EQ(status, 0);
	}
	forking = false;
	CHECK_EQ(pthread_join(thread, NULL), 0);
	stop();
}

CHECK_MAIN(TEST(threads_with_streams_of_their_own_do_not_disturb_each_other),
	   TEST(an_unmap_waits_for_the_copies_that_are_running),
	   TEST(the_call_that_is_named_fails_once),
	   TEST(a_fault_that_makes_no_sense_changes_nothing), TEST(calls_are_counted_by_their_name),
	   TEST(a_forked_child_is_refused_and_never_hangs))
