/* SPDX-License-Identifier: MIT */
/* Memory of the simulated driver: allocations, mappings, access, and what is given back. */
#include <fcntl.h>
#include <stdbool.h>
#include <unistd.h>

#include "test_sim.h"

static void small_allocations_share_one_block(void)
{
	CUdeviceptr first, second, third;
	size_t before;

	start();
	before = free_memory();
	first = allocate(1);
	second = allocate(513);
	third = allocate(100);
	CHECK_EQ(before - free_memory(), GRANULE);
	CHECK_EQ(second - first, 512);
	CHECK_EQ(third - second, 1024);
	OK(cuMemFree_v2(second));
	CHECK_EQ(allocate(1024), second);
	OK(cuMemFree_v2(first));
	OK(cuMemFree_v2(second));
	OK(cuMemFree_v2(third));
	CHECK_EQ(free_memory(), before);
	stop();
}

static void a_block_that_is_full_is_followed_by_another(void)
{
	CUdeviceptr pointers[5];
	size_t before;

	start();
	before = free_memory();
	for (int i = 0; i < 5; i++)
		pointers[i] = allocate(MIB);
	CHECK_EQ(before - free_memory(), 3 * GRANULE);
	for (int i = 0; i < 5; i++)
		OK(cuMemFree_v2(pointers[i]));
	CHECK_EQ(free_memory(), before);
	stop();
}

static void fresh_memory_is_zero(void)
{
	static const unsigned char zero[4096];
	CUdeviceptr pointer;

	start();
	for (int round = 0; round < 2; round++) {
		pointer = allocate(3 * MIB);
		CHECK_MEM_EQ(host(pointer + MIB), zero, sizeof(zero));
		OK(cuMemsetD8_v2(pointer, 0xa5, 3 * MIB));
		OK(cuMemFree_v2(pointer));
	}
	stop();
}

static void more_than_four_gibibytes_are_one_allocation(void)
{
	const size_t size = (size_t)5 << 30;
	const uint32_t value = 0x12345678;
	CUmemGenericAllocationHandle handle;
	CUdeviceptr pointer;
	uint32_t found = 0;

	start();
	handle = create(size);
	pointer = map(handle, size);
	OK(cuMemcpyHtoD_v2(pointer + size - 4, &value, 4));
	OK(cuMemcpyDtoH_v2(&found, pointer + size - 4, 4));
	CHECK_EQ(found, value);
	CHECK_EQ(*(uint32_t *)host(pointer), 0);
	unmap(pointer, size);
	OK(cuMemRelease(handle));
	stop();
}

static void a_device_pointer_is_a_host_address_of_the_same_bytes(void)
{
	CUdeviceptr pointer;
	char found[6] = "";

	start();
	pointer = allocate(4096);
	memcpy(host(pointer), "hello", 6);
	OK(cuMemcpyDtoH_v2(found, pointer, 6));
	CHECK_STR_EQ(found, "hello");
	OK(cuMemFree_v2(pointer));
	stop();
}

static void two_mappings_of_one_allocation_are_the_same_bytes(void)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr one, other;

	start();
	handle = create(GRANULE);
	one = map(handle, GRANULE);
	other = map(handle, GRANULE);
	OK(cuMemRelease(handle));
	memcpy(host(one), "shared", 7);
	CHECK_STR_EQ(host(other), "shared");
	unmap(one, GRANULE);
	CHECK_STR_EQ(host(other), "shared");
	unmap(other, GRANULE);
	stop();
}

static void mapped_memory_needs_access_before_it_is_touched(void)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr pointer;
	char buffer[4] = "abc";

	start();
	handle = create(GRANULE);
	pointer = reserve(GRANULE);
	OK(cuMemMap(pointer, GRANULE, 0, handle, 0));
	CHECK_EQ(cuMemcpyHtoD_v2(pointer, buffer, 4), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemcpyDtoH_v2(buffer, pointer, 4), CUDA_ERROR_INVALID_VALUE);
	OK(set_access(pointer, GRANULE, CU_MEM_ACCESS_FLAGS_PROT_READ));
	CHECK_EQ(cuMemcpyHtoD_v2(pointer, buffer, 4), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemsetD8_v2(pointer, 1, 4), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemcpyDtoH_v2(buffer, pointer, 4));
	CHECK_EQ(buffer[0], 0);
	unmap(pointer, GRANULE);
	OK(cuMemRelease(handle));
	stop();
}

/* Whether the program itself could store at the address. */
static bool can_store(CUdeviceptr pointer)
{
	int fds[2];
	bool stored;

	CHECK_EQ(pipe(fds), 0);
	CHECK_EQ(write(fds[1], "x", 1), 1);
	stored = read(fds[0], host(pointer), 1) == 1;
	close(fds[0]);
	close(fds[1]);
	return stored;
}

static void the_program_may_store_where_the_device_may_write(void)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr pointer;

	start();
	handle = create(GRANULE);
	pointer = map(handle, GRANULE);
	CHECK(can_store(pointer));
	OK(set_access(pointer, GRANULE, CU_MEM_ACCESS_FLAGS_PROT_READ));
	CHECK(!can_store(pointer));
	CHECK_STR_EQ(host(pointer), "x");
	OK(set_access(pointer, GRANULE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
	CHECK(can_store(pointer));
	OK(cuMemUnmap(pointer, GRANULE));
	CHECK(!can_store(pointer));
	OK(cuMemAddressFree(pointer, GRANULE));
	OK(cuMemRelease(handle));
	stop();
}

static void a_copy_spans_neighbouring_mappings_but_no_hole(void)
{
	CUmemGenericAllocationHandle first, second;
	CUdeviceptr pointer;

	start();
	pointer = reserve(3 * GRANULE);
	first = create(GRANULE);
	second = create(GRANULE);
	OK(cuMemMap(pointer, GRANULE, 0, first, 0));
	OK(cuMemMap(pointer + GRANULE, GRANULE, 0, second, 0));
	OK(set_access(pointer, 2 * GRANULE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
	OK(cuMemcpyHtoD_v2(pointer + GRANULE - 2, "abcd", 4));
	CHECK_MEM_EQ(host(pointer + GRANULE), "cd", 2);
	CHECK_EQ(cuMemcpyHtoD_v2(pointer + 2 * GRANULE - 2, "abcd", 4), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemcpyHtoD_v2(pointer + 2 * GRANULE, "abcd", 4), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemUnmap(pointer, 3 * GRANULE));
	OK(cuMemAddressFree(pointer, 3 * GRANULE));
	OK(cuMemRelease(first));
	OK(cuMemRelease(second));
	stop();
}

/* As on a GPU, which copies in no order. */
static void a_copy_of_bytes_over_themselves_spoils_them(void)
{
	static const struct {
		int to, from;
		const char *spoilt;
	} copies[] = {{1, 0, "aaaaaaah"}, {0, 1, "gggggggh"}, {0, 0, "abcdefgh"}};
	CUdeviceptr pointer;

	start();
	pointer = allocate(8);
	for (int i = 0; i < 3; i++) {
		OK(cuMemcpyHtoD_v2(pointer, "abcdefgh", 8));
		OK(cuMemcpyDtoD_v2(pointer + copies[i].to, pointer + copies[i].from, 6));
		OK(cuCtxSynchronize());
		CHECK_MEM_EQ(host(pointer), copies[i].spoilt, 8);
	}
	OK(cuMemFree_v2(pointer));
	stop();
}

static void rows_that_overlap_others_are_spoilt(void)
{
	CUDA_MEMCPY2D rows = {
		.srcMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.srcPitch = 4,
		.dstPitch = 4,
		.WidthInBytes = 4,
		.Height = 2,
	};
	CUdeviceptr pointer;

	start();
	pointer = allocate(12);
	OK(cuMemcpyHtoD_v2(pointer, "one.two.and.", 12));
	rows.srcDevice = pointer;
	rows.dstDevice = pointer + 4;
	OK(cuMemcpy2D_v2(&rows));
	OK(cuCtxSynchronize());
	CHECK_MEM_EQ(host(pointer), "one.one.one.", 12);
	OK(cuMemcpyHtoD_v2(pointer, "one.two.and.", 12));
	rows.srcDevice = pointer + 4;
	rows.dstDevice = pointer;
	OK(cuMemcpy2D_v2(&rows));
	OK(cuCtxSynchronize());
	CHECK_MEM_EQ(host(pointer), "and.and.and.", 12);
	OK(cuMemFree_v2(pointer));
	stop();
}

static void nothing_is_copied_from_and_to_nowhere(void)
{
	start();
	OK(cuMemcpyHtoD_v2(0, NULL, 0));
	OK(cuMemcpyDtoH_v2(NULL, 0, 0));
	OK(cuMemcpyHtoDAsync_v2(0, NULL, 0, NULL));
	OK(cuMemsetD8_v2(0, 1, 0));
	OK(cuMemsetD2D32Async(0, 0, 1, 0, (size_t)1 << 60, NULL));
	OK(cuCtxSynchronize());
	stop();
}

static void an_unmap_that_would_split_a_mapping_changes_nothing(void)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr pointer;

	start();
	handle = create(2 * GRANULE);
	pointer = map(handle, 2 * GRANULE);
	CHECK_EQ(cuMemUnmap(pointer, GRANULE), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemUnmap(pointer + GRANULE, GRANULE), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemAddressFree(pointer, 2 * GRANULE), CUDA_ERROR_INVALID_VALUE);
	memcpy(host(pointer + GRANULE), "kept", 5);
	CHECK_STR_EQ(host(pointer + GRANULE), "kept");
	unmap(pointer, 2 * GRANULE);
	OK(cuMemRelease(handle));
	stop();
}

static void a_wished_address_is_taken_when_it_is_free(void)
{
	CUdeviceptr first, second;

	start();
	first = reserve(GRANULE);
	OK(cuMemAddressReserve(&second, GRANULE, 0, first, 0));
	CHECK(second != first);
	OK(cuMemAddressFree(first, GRANULE));
	OK(cuMemAddressFree(second, GRANULE));
	OK(cuMemAddressReserve(&second, GRANULE, 0, first, 0));
	CHECK_EQ(second, first);
	OK(cuMemAddressFree(second, GRANULE));
	OK(cuMemAddressReserve(&first, GRANULE, (size_t)1 << 30, 0, 0));
	CHECK_EQ(first % ((size_t)1 << 30), 0);
	OK(cuMemAddressFree(first, GRANULE));
	stop();
}

static void memory_runs_out_at_the_size_of_the_device(void)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr pointer;
	size_t free, total;

	start();
	OK(cuMemGetInfo_v2(&free, &total));
	CHECK_EQ(free, total);
	handle = create(total - GRANULE);
	CHECK_EQ(cuMemAlloc_v2(&pointer, GRANULE + 1), CUDA_ERROR_OUT_OF_MEMORY);
	pointer = allocate(GRANULE);
	CHECK_EQ(free_memory(), 0);
	OK(cuMemFree_v2(pointer));
	OK(cuMemRelease(handle));
	CHECK_EQ(free_memory(), total);
	stop();
}

static void an_exported_descriptor_keeps_the_memory(void)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr pointer;
	int fd = -1;

	start();
	handle = create(GRANULE);
	pointer = map(handle, GRANULE);
	memcpy(host(pointer), "alive", 6);
	OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	CHECK_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
	unmap(pointer, GRANULE);
	OK(cuMemRelease(handle));
	OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
					  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	pointer = map(handle, GRANULE);
	CHECK_STR_EQ(host(pointer), "alive");
	CHECK_EQ(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					      0),
		 CUDA_ERROR_INVALID_VALUE);
	unmap(pointer, GRANULE);
	OK(cuMemRelease(handle));
	stop();
}

static void a_context_takes_its_memory_along(void)
{
	CUcontext context;
	void *pinned;
	size_t before;

	start();
	before = free_memory();
	OK(cuCtxCreate_v2(&context, 0, 0));
	for (int i = 0; i < 20; i++)
		allocate(100000 * (size_t)(i + 1));
	OK(cuMemHostAlloc(&pinned, 8192, 0));
	CHECK(free_memory() < before);
	OK(cuCtxDestroy_v2(context));
	CHECK_EQ(free_memory(), before);
	CHECK_EQ(cuMemFreeHost(pinned), CUDA_ERROR_INVALID_VALUE);
	stop();
}

static void registered_memory_is_reached_by_the_device(void)
{
	static unsigned char buffer[3 * 4096];
	CUdeviceptr device;

	start();
	CHECK_EQ(cuMemsetD8_v2((uintptr_t)buffer, 7, 1), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemHostRegister_v2(buffer, 4096, 0));
	OK(cuMemHostGetDevicePointer_v2(&device, buffer + 8, 0));
	OK(cuMemsetD8_v2(device, 7, 1));
	CHECK_EQ(buffer[8], 7);
	CHECK_EQ(cuMemsetD8_v2((uintptr_t)buffer + 4000, 7, 200), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemHostRegister_v2(buffer + 100, 10, 0),
		 CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	OK(cuMemHostUnregister(buffer));
	CHECK_EQ(cuMemHostUnregister(buffer), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	stop();
}

CHECK_MAIN(TEST(small_allocations_share_one_block),
	   TEST(a_block_that_is_full_is_followed_by_another), TEST(fresh_memory_is_zero),
	   TEST(more_than_four_gibibytes_are_one_allocation),
	   TEST(a_device_pointer_is_a_host_address_of_the_same_bytes),
	   TEST(two_mappings_of_one_allocation_are_the_same_bytes),
	   TEST(mapped_memory_needs_access_before_it_is_touched),
	   TEST(the_program_may_store_where_the_device_may_write),
	   TEST(a_copy_spans_neighbouring_mappings_but_no_hole),
	   TEST(a_copy_of_bytes_over_themselves_spoils_them),
	   TEST(rows_that_overlap_others_are_spoilt), TEST(nothing_is_copied_from_and_to_nowhere),
	   TEST(an_unmap_that_would_split_a_mapping_changes_nothing),
	   TEST(a_wished_address_is_taken_when_it_is_free),
	   TEST(memory_runs_out_at_the_size_of_the_device),
	   TEST(an_exported_descriptor_keeps_the_memory), TEST(a_context_takes_its_memory_along),
	   TEST(registered_memory_is_reached_by_the_device))
