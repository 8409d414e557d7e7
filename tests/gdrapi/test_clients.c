/* SPDX-License-Identifier: MIT */
/* The calls of programs that use the library, in their order and with their arguments. */
#include "rig.h"

/* What programs call whose header is of before 2.4, or who look it up by its name. */
struct older_info {
	uint64_t va;
	uint64_t mapped_size;
	uint32_t page_size;
	uint64_t tm_cycles;
	uint32_t cycles_per_ms;
	unsigned mapped : 1;
	unsigned wc_mapping : 1;
};

extern int older_get_info(gdr_t gdr, gdr_mh_t handle,
			  struct older_info *info) __asm__("gdr_get_info");

static void nccl_allocates_more_than_it_pins(void)
{
	CUdeviceptr memory = allocate(2 * GPU_PAGE - 1);
	CUdeviceptr aligned = (memory + GPU_PAGE_OFFSET) & GPU_PAGE_MASK;
	uint64_t sent = 0x0123456789abcdef, received = 0;
	struct older_info info;
	gdr_t gdr = opened();
	gdr_mh_t handle;
	void *mapped;

	CHECK_EQ(gdr_pin_buffer_v2(gdr, aligned, GPU_PAGE, GDR_PIN_FLAG_DEFAULT, &handle), 0);
	CHECK_EQ(gdr_map(gdr, handle, &mapped, GPU_PAGE), 0);
	CHECK_EQ(older_get_info(gdr, handle, &info), 0);
	CHECK_EQ(info.va, aligned);
	CHECK_EQ(gdr_copy_to_mapping(handle, mapped, &sent, sizeof(sent)), 0);
	CHECK_EQ(gdr_copy_from_mapping(handle, &received, mapped, sizeof(received)), 0);
	CHECK_EQ(received, sent);
	check_same_memory(mapped, aligned);
	CHECK_EQ(gdr_unmap(gdr, handle, mapped, GPU_PAGE), 0);
	CHECK_EQ(gdr_unpin_buffer(gdr, handle), 0);
	OK(cuMemFree_v2(memory));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void nvshmem_pins_whole_pages_and_maps_few_bytes(void)
{
	CUdeviceptr pointer = allocate(GPU_PAGE);
	gdr_t gdr = opened();
	gdr_mh_t handle = pinned(gdr, pointer, GPU_PAGE);
	uint64_t index = 7;
	void *mapped;

	CHECK_EQ(gdr_map(gdr, handle, &mapped, sizeof(index)), 0);
	mapped = (char *)mapped + (pointer - info_of(gdr, handle).va);
	CHECK_EQ(gdr_copy_to_mapping(handle, mapped, &index, sizeof(index)), 0);
	check_same_memory(mapped, pointer);
	mapped = (char *)mapped - (pointer - info_of(gdr, handle).va);
	CHECK_EQ(gdr_unmap(gdr, handle, mapped, sizeof(index)), 0);
	CHECK_EQ(gdr_unpin_buffer(gdr, handle), 0);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
	CHECK_EQ(gdr_close(NULL), EINVAL);
}

static void ucx_opens_once_more_and_unmaps_after_the_memory_is_freed(void)
{
	CUdeviceptr pointer = allocate(100);
	CUdeviceptr first = pointer & GPU_PAGE_MASK;
	gdr_mh_t handle;
	gdr_t gdr;
	void *mapped;

	CHECK_EQ(gdr_close(opened()), 0);
	gdr = opened();
	CHECK_EQ(gdr_pin_buffer_v2(gdr, first, GPU_PAGE, GDR_PIN_FLAG_DEFAULT, &handle), 0);
	CHECK_EQ(gdr_map(gdr, handle, &mapped, GPU_PAGE), 0);
	CHECK_EQ(info_of(gdr, handle).va, first);
	check_same_memory((unsigned char *)mapped + (pointer - first), pointer);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_unmap(gdr, handle, mapped, GPU_PAGE), 0);
	CHECK_EQ(gdr_unpin_buffer(gdr, handle), 0);
	CHECK_EQ(gdr_close(gdr), 0);
}

static void dpdk_unmaps_by_the_address_on_the_gpu(void)
{
	CUdeviceptr memory = allocate(GRANULE);
	CUdeviceptr pointer = memory + GPU_PAGE;
	gdr_t gdr = opened();
	gdr_mh_t handle = pinned(gdr, pointer, 3 * GPU_PAGE);
	void *mapped;

	CHECK_EQ(gdr_map(gdr, handle, &mapped, 3 * GPU_PAGE), 0);
	CHECK_EQ(gdr_unmap(gdr, handle, (void *)memory, GPU_PAGE), EINVAL);
	CHECK_EQ(gdr_unmap(gdr, handle, (void *)(pointer + GPU_PAGE), GPU_PAGE), EINVAL);
	CHECK_EQ(info_of(gdr, handle).mapped, 1);
	CHECK_EQ(gdr_unmap(gdr, handle, (void *)pointer, 3 * GPU_PAGE), 0);
	CHECK_EQ(info_of(gdr, handle).mapped, 0);
	CHECK_EQ(gdr_unpin_buffer(gdr, handle), 0);
	OK(cuMemFree_v2(memory));
	CHECK_EQ(gdr_close(gdr), 0);
}

/* Its proxies deliver signals so: by read, change and write. */
static void aws_ofi_falls_back_where_pcie_cannot_be_forced(void)
{
	CUdeviceptr pointer = allocate(GRANULE) + 5 * sizeof(uint64_t);
	CUdeviceptr first = pointer & GPU_PAGE_MASK;
	gdr_t gdr = opened();
	int major, minor, error;
	uint64_t signal = 0;
	gdr_mh_t handle;
	void *mapped;

	gpu_write(pointer, &signal, sizeof(signal));
	gdr_runtime_get_version(&major, &minor);
	CHECK(major > 2 || (major == 2 && minor >= 5));
	CHECK_EQ(gdr_driver_get_version(gdr, &major, &minor), 0);
	CHECK(major > 2 || (major == 2 && minor >= 5));
	error = gdr_pin_buffer_v2(gdr, first, GPU_PAGE, GDR_PIN_FLAG_FORCE_PCIE, &handle);
	CHECK_EQ(error, expected_of_forced_pcie());
	if (error)
		CHECK_EQ(gdr_pin_buffer_v2(gdr, first, GPU_PAGE, GDR_PIN_FLAG_DEFAULT, &handle), 0);
	CHECK_EQ(gdr_map(gdr, handle, &mapped, GPU_PAGE), 0);
	mapped = (char *)mapped + (pointer - first);
	for (uint64_t i = 0; i < 10; i++) {
		CHECK_EQ(gdr_copy_from_mapping(handle, &signal, mapped, sizeof(signal)), 0);
		CHECK_EQ(signal, i);
		signal++;
		CHECK_EQ(gdr_copy_to_mapping(handle, mapped, &signal, sizeof(signal)), 0);
	}
	gpu_read(pointer, &signal, sizeof(signal));
	CHECK_EQ(signal, 10);
	mapped = (char *)mapped - (pointer - first);
	CHECK_EQ(gdr_unmap(gdr, handle, mapped, GPU_PAGE), 0);
	CHECK_EQ(gdr_unpin_buffer(gdr, handle), 0);
	OK(cuMemFree_v2(first));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void old_programs_pass_tokens(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	gdr_mh_t handle;

	CHECK_EQ(gdr_pin_buffer(gdr, pointer, GPU_PAGE, 0x1234567890abcdef, 0x12345678, &handle),
		 0);
	CHECK_EQ(info_of(gdr, handle).va, pointer & GPU_PAGE_MASK);
	CHECK_EQ(gdr_unpin_buffer(gdr, handle), 0);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

RIG_MAIN(TEST(nccl_allocates_more_than_it_pins), TEST(nvshmem_pins_whole_pages_and_maps_few_bytes),
	 TEST(ucx_opens_once_more_and_unmaps_after_the_memory_is_freed),
	 TEST(dpdk_unmaps_by_the_address_on_the_gpu),
	 TEST(aws_ofi_falls_back_where_pcie_cannot_be_forced), TEST(old_programs_pass_tokens))
