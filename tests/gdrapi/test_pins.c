/* SPDX-License-Identifier: MIT */
/* Which ranges of GPU memory can be pinned, and what a pin says of itself. */
#include "rig.h"

/* A dma-buf has CPU pages, as in the kernel; all other pins have those of the GPU. */
static size_t page_size(void)
{
	return backend_is("dmabuf") ? 4096 : GPU_PAGE;
}

static void check_pages(gdr_t gdr, CUdeviceptr pointer, size_t nbytes)
{
	gdr_mh_t handle = pinned(gdr, pointer, nbytes);
	gdr_info_v2_t info = info_of(gdr, handle);
	uint64_t first = pointer / page_size() * page_size();
	uint64_t end = (pointer + nbytes + page_size() - 1) / page_size() * page_size();

	CHECK_EQ(info.va, first);
	CHECK_EQ(info.mapped_size, end - first);
	CHECK_EQ(info.page_size, page_size());
	CHECK_EQ(info.mapped, 0);
	CHECK_EQ(info.wc_mapping, 0);
	CHECK_EQ(info.mapping_type, GDR_MAPPING_TYPE_NONE);
	CHECK_EQ(gdr_unpin_buffer(gdr, handle), 0);
}

static void a_pin_is_rounded_out_to_whole_pages(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();

	check_pages(gdr, pointer, 1);
	check_pages(gdr, pointer, GPU_PAGE);
	check_pages(gdr, pointer, GPU_PAGE + 1);
	check_pages(gdr, pointer, 12345);
	check_pages(gdr, pointer, GRANULE - 1);
	check_pages(gdr, pointer, GRANULE);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void a_pointer_need_not_be_aligned(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();

	check_pages(gdr, pointer + 1, 1);
	check_pages(gdr, pointer + GPU_PAGE - 1, 2);
	check_pages(gdr, pointer + 70000, 10);
	check_pages(gdr, pointer + 4096, GPU_PAGE);
	check_pages(gdr, pointer + GRANULE - 1, 1);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void each_interior_pointer_shows_its_own_bytes(void)
{
	static const size_t offsets[] = {0, 1, 511, 4095, 4097, 65535, 65537, 1000003, GRANULE - 1};
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();

	for (size_t i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++) {
		struct view view = viewed(gdr, pointer + offsets[i], 1);

		check_same_memory(view.bytes, pointer + offsets[i]);
		close_view(&view);
	}
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void small_allocations_that_share_a_page_are_told_apart(void)
{
	CUdeviceptr pointers[5];
	struct view views[5];
	gdr_t gdr = opened();

	for (int i = 0; i < 5; i++)
		pointers[i] = allocate(1000);
	CHECK_EQ(pointers[0] / GPU_PAGE, pointers[4] / GPU_PAGE);
	for (int i = 0; i < 5; i++) {
		views[i] = viewed(gdr, pointers[i], 1000);
		memset(views[i].bytes, 'a' + i, 1000);
	}
	for (int i = 0; i < 5; i++) {
		unsigned char found[1000], expected[1000];

		memset(expected, 'a' + i, sizeof(expected));
		gpu_read(pointers[i], found, sizeof(found));
		CHECK_MEM_EQ(found, expected, sizeof(found));
		close_view(&views[i]);
		OK(cuMemFree_v2(pointers[i]));
	}
	CHECK_EQ(gdr_close(gdr), 0);
}

/* What a registration cache asks for: it knows whole GPU pages, and no allocations. */
static void a_range_that_begins_before_its_allocation_is_pinned(void)
{
	CUdeviceptr before = allocate(5000), pointer = allocate(100000);
	uint64_t first = pointer / GPU_PAGE * GPU_PAGE;
	size_t size = (pointer + 100000 + GPU_PAGE - 1) / GPU_PAGE * GPU_PAGE - first;
	gdr_t gdr = opened();
	struct view view;

	CHECK(first < pointer);
	view = viewed(gdr, first, size);
	check_same_memory(view.bytes + (before - first), before);
	check_same_memory(view.bytes + (pointer - first), pointer);
	close_view(&view);

	/* Nothing is allocated where it begins. */
	OK(cuMemFree_v2(before));
	view = viewed(gdr, first, size);
	check_same_memory(view.bytes + (pointer - first), pointer);
	CHECK_EQ(info_of(gdr, view.handle).va, first);
	CHECK_EQ(view.size, size);
	close_view(&view);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void memory_of_cumemcreate_is_pinned(void)
{
	CUmemGenericAllocationHandle memory = create(2 * GRANULE);
	CUdeviceptr pointer = map(memory, 2 * GRANULE);
	gdr_t gdr = opened();
	struct view view = viewed(gdr, pointer + GRANULE + 12345, 100000);

	check_same_memory(view.bytes, pointer + GRANULE + 12345);
	check_same_memory(view.bytes + 99999, pointer + GRANULE + 112344);
	close_view(&view);
	CHECK_EQ(refused(gdr, pointer + GRANULE, GRANULE + GPU_PAGE), EINVAL);
	unmap(pointer, 2 * GRANULE);
	OK(cuMemRelease(memory));
	CHECK_EQ(gdr_close(gdr), 0);
}

/* Two allocations side by side, as an allocator that grows its segments makes them. */
static void memory_of_several_mappings_is_one_pin(void)
{
	CUmemGenericAllocationHandle memories[] = {create(GRANULE), create(2 * GRANULE)};
	CUdeviceptr pointer = reserve(4 * GRANULE);
	gdr_t gdr = opened();
	struct view view;

	OK(cuMemMap(pointer, GRANULE, 0, memories[0], 0));
	OK(cuMemMap(pointer + GRANULE, 2 * GRANULE, 0, memories[1], 0));
	OK(set_access(pointer, 3 * GRANULE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));

	view = viewed(gdr, pointer + 100000, 3 * GRANULE - 100000);
	CHECK_EQ(info_of(gdr, view.handle).va, pointer + 65536);
	CHECK_EQ(view.size, 3 * GRANULE - 65536);
	for (size_t at = 100000; at < 3 * GRANULE; at += 99991)
		check_same_memory(view.bytes + at - 100000, pointer + at);
	check_same_memory(view.bytes + GRANULE - 100000 - 1, pointer + GRANULE - 1);
	check_same_memory(view.bytes + GRANULE - 100000, pointer + GRANULE);
	CHECK_EQ(gdr_unmap(gdr, view.handle, view.va, view.size), 0);
	/* Less of it, up to the seam and beyond. */
	for (size_t size = GRANULE - 120000; size < GRANULE; size += 4096) {
		size_t last = 100000 - 65536 + size - 1;

		CHECK_EQ(gdr_map(gdr, view.handle, &view.va, size), 0);
		check_same_memory((unsigned char *)view.va + last, pointer + 65536 + last);
		CHECK_EQ(gdr_unmap(gdr, view.handle, view.va, size), 0);
	}
	CHECK_EQ(gdr_unpin_buffer(gdr, view.handle), 0);

	CHECK_EQ(refused(gdr, pointer, 4 * GRANULE), EINVAL);
	OK(cuMemUnmap(pointer, 3 * GRANULE));
	OK(cuMemAddressFree(pointer, 4 * GRANULE));
	OK(cuMemRelease(memories[0]));
	OK(cuMemRelease(memories[1]));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void a_range_of_no_bytes_is_refused(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();

	CHECK_EQ(refused(gdr, pointer, 0), EINVAL);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void a_range_beyond_its_allocation_is_refused(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();

	CHECK_EQ(refused(gdr, pointer, GRANULE + GPU_PAGE), EINVAL);
	CHECK_EQ(refused(gdr, pointer + GRANULE - 1, GPU_PAGE + 1), EINVAL);
	CHECK_EQ(refused(gdr, pointer, 1ul << 40), EINVAL);
	CHECK_EQ(refused(gdr, pointer, SIZE_MAX), EINVAL);
	CHECK_EQ(refused(gdr, pointer, SIZE_MAX - pointer), EINVAL);
	CHECK_EQ(refused(gdr, pointer, -pointer), EINVAL);
	CHECK_EQ(refused(gdr, pointer + 1, SIZE_MAX - GPU_PAGE), EINVAL);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void what_is_no_gpu_memory_is_refused(void)
{
	static unsigned char of_the_program[GPU_PAGE];
	gdr_t gdr = opened();
	void *pinned_host;

	OK(cuMemHostAlloc(&pinned_host, GPU_PAGE, 0));
	CHECK_EQ(refused(gdr, (uintptr_t)of_the_program, sizeof(of_the_program)), EINVAL);
	CHECK_EQ(refused(gdr, (uintptr_t)&gdr, 8), EINVAL);
	CHECK_EQ(refused(gdr, (uintptr_t)pinned_host, GPU_PAGE), EINVAL);
	CHECK_EQ(refused(gdr, 0, 4096), EINVAL);
	CHECK_EQ(refused(gdr, 1, 1), EINVAL);
	CHECK_EQ(refused(gdr, UINT64_MAX, 1), EINVAL);
	OK(cuMemFreeHost(pinned_host));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void memory_that_was_freed_is_refused(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();

	OK(cuMemFree_v2(pointer));
	CHECK_EQ(refused(gdr, pointer, GRANULE), EINVAL);
	CHECK_EQ(gdr_close(gdr), 0);
}

static void memory_can_be_pinned_more_than_once(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	struct view first = viewed(gdr, pointer, GRANULE), second = viewed(gdr, pointer, GRANULE);

	CHECK(first.handle.h != second.handle.h);
	CHECK(first.va != second.va);
	first.bytes[7] = 77;
	CHECK_EQ(second.bytes[7], 77);
	close_view(&first);
	check_same_memory(second.bytes, pointer);
	close_view(&second);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void the_second_version_pins_as_the_first(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	gdr_mh_t handle;

	CHECK_EQ(gdr_pin_buffer_v2(gdr, pointer + 5, 5, GDR_PIN_FLAG_DEFAULT, &handle), 0);
	CHECK_EQ(info_of(gdr, handle).va, pointer);
	CHECK_EQ(gdr_unpin_buffer(gdr, handle), 0);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void flags_that_are_not_known_are_refused(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	gdr_mh_t handle;

	CHECK_EQ(gdr_pin_buffer_v2(gdr, pointer, 5, 2, &handle), EINVAL);
	CHECK_EQ(gdr_pin_buffer_v2(gdr, pointer, 5, 3, &handle), EINVAL);
	CHECK_EQ(gdr_pin_buffer_v2(gdr, pointer, 5, 1u << 31, &handle), EINVAL);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void pcie_is_forced_or_refused_as_nvidias_module_does(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	gdr_mh_t handle;
	int error = gdr_pin_buffer_v2(gdr, pointer, 5, GDR_PIN_FLAG_FORCE_PCIE, &handle);

	CHECK_EQ(error, expected_of_forced_pcie());
	if (!error)
		CHECK_EQ(gdr_unpin_buffer(gdr, handle), 0);
	CHECK_EQ(gdr_pin_buffer_v2(gdr, (uintptr_t)&handle, 5, GDR_PIN_FLAG_FORCE_PCIE, &handle),
		 EINVAL);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

RIG_MAIN(TEST(a_pin_is_rounded_out_to_whole_pages), TEST(a_pointer_need_not_be_aligned),
	 TEST(each_interior_pointer_shows_its_own_bytes),
	 TEST(small_allocations_that_share_a_page_are_told_apart),
	 TEST(a_range_that_begins_before_its_allocation_is_pinned),
	 TEST(memory_of_cumemcreate_is_pinned), TEST(memory_of_several_mappings_is_one_pin),
	 TEST(a_range_of_no_bytes_is_refused), TEST(a_range_beyond_its_allocation_is_refused),
	 TEST(what_is_no_gpu_memory_is_refused), TEST(memory_that_was_freed_is_refused),
	 TEST(memory_can_be_pinned_more_than_once), TEST(the_second_version_pins_as_the_first),
	 TEST(flags_that_are_not_known_are_refused),
	 TEST(pcie_is_forced_or_refused_as_nvidias_module_does))
