/* SPDX-License-Identifier: MIT */
/* Mapping a pin by its handle, and what may be done to the mapping. */
#include "rig.h"

#define READ_WRITE (PROT_READ | PROT_WRITE)

struct rig {
	struct gpu gpu;
	int node;
	uint64_t handle;
	unsigned char *mapped;
};

/* Four GPU pages, pinned. */
static struct rig pinned(void)
{
	struct rig rig = {.gpu = gpu_alloc(4), .node = open_node()};

	CHECK_EQ(pin(rig.node, rig.gpu.va, rig.gpu.size, &rig.handle), 0);
	return rig;
}

static struct rig pinned_and_mapped(void)
{
	struct rig rig = pinned();

	CHECK_EQ(map(rig.node, rig.handle, rig.gpu.size, &rig.mapped), 0);
	return rig;
}

static int map_with(const struct rig *rig, size_t size, int protection, int flags, uint64_t offset)
{
	unsigned char *mapped;

	return map_at(rig->node, size, protection, flags, offset, &mapped);
}

/* The GPU sees what is stored in the first and the last byte of each page. */
static void check_whole(const struct rig *rig)
{
	static unsigned char value;

	for (size_t at = 0; at < rig->gpu.size; at += CPU_PAGE) {
		rig->mapped[at] = ++value;
		rig->mapped[at + CPU_PAGE - 1] = ++value;
		CHECK_EQ(rig->gpu.bytes[at], (unsigned char)(value - 1));
		CHECK_EQ(rig->gpu.bytes[at + CPU_PAGE - 1], value);
	}
}

static bool is_mapped(const struct rig *rig)
{
	struct abi_info info;

	CHECK_EQ(get_info(rig->node, rig->handle, &info), 0);
	return info.mapped;
}

static void stores_reach_the_gpus_memory(void)
{
	struct rig rig = pinned_and_mapped();

	check_whole(&rig);
	rig.gpu.bytes[12345] = 99;
	CHECK_EQ(rig.mapped[12345], 99);
}

static void every_page_is_write_combined(void)
{
	struct rig rig = pinned_and_mapped();

	for (size_t at = 0; at < rig.gpu.size; at += CPU_PAGE) {
		CHECK_EQ(load_signal(rig.mapped + at), 0);
		CHECK_EQ(cache_mode(rig.mapped + at), GPUSTANDIN_WC);
	}
}

static void every_page_of_a_part_is_write_combined(void)
{
	struct rig rig = pinned();

	CHECK_EQ(map(rig.node, rig.handle, 3 * CPU_PAGE, &rig.mapped), 0);
	for (size_t at = 0; at < 3 * CPU_PAGE; at += CPU_PAGE) {
		CHECK_EQ(store_signal(rig.mapped + at), 0);
		CHECK_EQ(cache_mode(rig.mapped + at), GPUSTANDIN_WC);
	}
}

static void every_page_of_scattered_memory_is_write_combined(void)
{
	struct gpu gpu = gpu_alloc_at(0x600000000000, 8, GPUSTANDIN_SCATTERED);
	struct rig rig = {.gpu = gpu, .node = open_node()};

	CHECK_EQ(pin(rig.node, gpu.va, gpu.size, &rig.handle), 0);
	CHECK_EQ(map(rig.node, rig.handle, gpu.size, &rig.mapped), 0);
	check_whole(&rig);
	for (size_t at = 0; at < gpu.size; at += CPU_PAGE)
		CHECK_EQ(cache_mode(rig.mapped + at), GPUSTANDIN_WC);
}

static void any_size_up_to_the_pins_is_mapped_from_its_start(void)
{
	struct rig rig = pinned();

	for (size_t size = CPU_PAGE; size <= rig.gpu.size; size += 7 * CPU_PAGE) {
		CHECK_EQ(map(rig.node, rig.handle, size, &rig.mapped), 0);
		rig.mapped[size - 1] = 8;
		CHECK_EQ(rig.gpu.bytes[size - 1], 8);
		rig.gpu.bytes[size - 1] = 0;
		CHECK_EQ(munmap(rig.mapped, size), 0);
	}
}

static void a_size_of_0_or_beyond_the_pin_is_invalid(void)
{
	struct rig rig = pinned();
	uint64_t offset = rig.handle * CPU_PAGE;

	CHECK_EQ(map_with(&rig, 0, READ_WRITE, MAP_SHARED, offset), EINVAL);
	CHECK_EQ(map_with(&rig, rig.gpu.size + 1, READ_WRITE, MAP_SHARED, offset), EINVAL);
	CHECK_EQ(map_with(&rig, 2 * rig.gpu.size, READ_WRITE, MAP_SHARED, offset), EINVAL);
	CHECK(!is_mapped(&rig));
}

static void an_offset_that_is_not_the_handles_is_invalid(void)
{
	struct rig rig = pinned();
	uint64_t offset = rig.handle * CPU_PAGE;

	CHECK_EQ(map_with(&rig, CPU_PAGE, READ_WRITE, MAP_SHARED, 0), EINVAL);
	CHECK_EQ(map_with(&rig, CPU_PAGE, READ_WRITE, MAP_SHARED, offset + 1), EINVAL);
	CHECK_EQ(map_with(&rig, CPU_PAGE, READ_WRITE, MAP_SHARED, offset + CPU_PAGE), EINVAL);
	CHECK_EQ(map_with(&rig, CPU_PAGE, READ_WRITE, MAP_SHARED, offset | 1ull << 44), EINVAL);
}

static void a_private_mapping_is_invalid(void)
{
	struct rig rig = pinned();
	uint64_t offset = rig.handle * CPU_PAGE;

	CHECK_EQ(map_with(&rig, CPU_PAGE, READ_WRITE, MAP_PRIVATE, offset), EINVAL);
	CHECK_EQ(map_with(&rig, CPU_PAGE, PROT_READ, MAP_PRIVATE, offset), EINVAL);
}

static void a_mapping_is_never_executable(void)
{
	struct rig rig = pinned();
	uint64_t offset = rig.handle * CPU_PAGE;

	CHECK_EQ(map_with(&rig, CPU_PAGE, PROT_READ | PROT_EXEC, MAP_SHARED, offset), EACCES);
	CHECK_EQ(map_with(&rig, CPU_PAGE, READ_WRITE | PROT_EXEC, MAP_SHARED, offset), EACCES);
	CHECK_EQ(map(rig.node, rig.handle, rig.gpu.size, &rig.mapped), 0);
	CHECK_EQ(mprotect(rig.mapped, rig.gpu.size, PROT_READ | PROT_EXEC), -1);
	CHECK_EQ(errno, EACCES);
}

static void a_pin_is_mapped_once_at_a_time(void)
{
	struct rig rig = pinned_and_mapped();
	unsigned char *second;

	CHECK_EQ(map(rig.node, rig.handle, CPU_PAGE, &second), EINVAL);
	check_whole(&rig);
	CHECK_EQ(munmap(rig.mapped, rig.gpu.size), 0);
	CHECK_EQ(map(rig.node, rig.handle, rig.gpu.size, &rig.mapped), 0);
	check_whole(&rig);
}

static void a_pin_that_begins_inside_a_gpu_page_is_not_mapped_by_its_handle(void)
{
	static const uint64_t starts[] = {1, 8, 4096, 32768, GPU_PAGE - 1, GPU_PAGE + 4096};
	struct gpu gpu = gpu_alloc(2);
	int node = open_node();

	for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
		unsigned char *mapped;
		uint64_t handle;

		CHECK_EQ(pin(node, gpu.va + starts[i], 1, &handle), 0);
		CHECK_EQ(map(node, handle, CPU_PAGE, &mapped), EINVAL);
		CHECK_EQ(map(node, handle, GPU_PAGE, &mapped), EINVAL);
		CHECK_EQ(unpin(node, handle), 0);
	}
}

static void a_part_cannot_be_unmapped(void)
{
	struct rig rig = pinned_and_mapped();

	for (size_t at = 0; at < rig.gpu.size; at += GPU_PAGE) {
		CHECK_EQ(munmap(rig.mapped + at, CPU_PAGE), -1);
		CHECK_EQ(errno, EINVAL);
		CHECK(is_mapped(&rig));
	}
	check_whole(&rig);
}

static void a_part_cannot_be_protected_alone(void)
{
	struct rig rig = pinned_and_mapped();

	CHECK_EQ(mprotect(rig.mapped, CPU_PAGE, PROT_READ), -1);
	CHECK_EQ(errno, EINVAL);
	check_whole(&rig);
	CHECK_EQ(mprotect(rig.mapped, rig.gpu.size, PROT_READ), 0);
	CHECK_EQ(store_signal(rig.mapped), SIGSEGV);
	CHECK_EQ(mprotect(rig.mapped, rig.gpu.size, READ_WRITE), 0);
	check_whole(&rig);
}

static void a_mapping_neither_grows_nor_shrinks_nor_doubles(void)
{
	struct rig rig = pinned_and_mapped();
	size_t size = rig.gpu.size;

	CHECK(mremap(rig.mapped, size, 2 * size, MREMAP_MAYMOVE) == MAP_FAILED);
	CHECK_EQ(errno, EFAULT);
	CHECK(mremap(rig.mapped, size, CPU_PAGE, 0) == MAP_FAILED);
	CHECK_EQ(errno, EINVAL);
	CHECK(mremap(rig.mapped, 0, size, MREMAP_MAYMOVE) == MAP_FAILED);
	CHECK(mremap(rig.mapped, size, size, MREMAP_MAYMOVE | MREMAP_DONTUNMAP) == MAP_FAILED);
	CHECK(is_mapped(&rig));
	check_whole(&rig);
}

/* A place that the kernel will not have used. */
static unsigned char *free_place(size_t size)
{
	unsigned char *place = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(place != MAP_FAILED);
	return place;
}

static void a_part_cannot_be_moved_away(void)
{
	struct rig rig = pinned_and_mapped();
	unsigned char *place = free_place(CPU_PAGE);

	CHECK(mremap(rig.mapped + CPU_PAGE, CPU_PAGE, CPU_PAGE, MREMAP_MAYMOVE | MREMAP_FIXED,
		     place) == MAP_FAILED);
	CHECK_EQ(errno, EINVAL);
	check_whole(&rig);
}

static void a_mapping_that_was_moved_is_still_the_pins(void)
{
	struct rig rig = pinned_and_mapped();
	unsigned char *old = rig.mapped, *second;

	rig.mapped = mremap(old, rig.gpu.size, rig.gpu.size, MREMAP_MAYMOVE | MREMAP_FIXED,
			    free_place(rig.gpu.size));
	CHECK(rig.mapped != MAP_FAILED);
	CHECK(is_mapped(&rig));
	CHECK_EQ(map(rig.node, rig.handle, CPU_PAGE, &second), EINVAL);
	CHECK_EQ(store_signal(old), SIGSEGV);
	check_whole(&rig);
	CHECK_EQ(cache_mode(rig.mapped), GPUSTANDIN_WC);
	CHECK_EQ(unpin(rig.node, rig.handle), 0);
	CHECK_EQ(store_signal(rig.mapped), SIGBUS);
	CHECK_EQ(munmap(rig.mapped, rig.gpu.size), 0);
}

static void a_mapping_cannot_be_asked_to_stay_in_children(void)
{
	struct rig rig = pinned_and_mapped();

	CHECK_EQ(madvise(rig.mapped, rig.gpu.size, MADV_DOFORK), -1);
	CHECK_EQ(errno, EINVAL);
}

static void unpinning_ends_the_mapping(void)
{
	struct rig rig = pinned_and_mapped();

	check_whole(&rig);
	CHECK_EQ(unpin(rig.node, rig.handle), 0);
	for (size_t at = 0; at < rig.gpu.size; at += CPU_PAGE) {
		CHECK_EQ(cache_mode(rig.mapped + at), -1);
		CHECK_EQ(load_signal(rig.mapped + at), SIGBUS);
		CHECK_EQ(store_signal(rig.mapped + at), SIGBUS);
	}
	CHECK_EQ(gpu_pins(), 0);
	CHECK_EQ(munmap(rig.mapped, rig.gpu.size), 0);
}

static void a_mapping_keeps_the_pin_of_a_closed_node(void)
{
	struct rig rig = pinned_and_mapped();

	close(rig.node);
	check_whole(&rig);
	CHECK_EQ(gpu_pins(), 1);
	CHECK_EQ(munmap(rig.mapped, rig.gpu.size), 0);
	CHECK_EQ(gpu_pins(), 0);
}

static void a_persistent_mapping_outlives_the_freeing(void)
{
	struct rig rig = pinned_and_mapped();

	gpu_free(&rig.gpu);
	check_whole(&rig);
	CHECK_EQ(unpin(rig.node, rig.handle), 0);
	CHECK_EQ(store_signal(rig.mapped), SIGBUS);
}

static void a_node_opened_for_reading_maps_for_reading(void)
{
	struct rig rig = {.gpu = gpu_alloc(4), .node = open("/dev/gdrdrv", O_RDONLY)};
	uint64_t offset;

	CHECK_EQ(pin(rig.node, rig.gpu.va, rig.gpu.size, &rig.handle), 0);
	offset = rig.handle * CPU_PAGE;
	CHECK_EQ(map_with(&rig, CPU_PAGE, READ_WRITE, MAP_SHARED, offset), EACCES);
	CHECK_EQ(map_at(rig.node, CPU_PAGE, PROT_READ, MAP_SHARED, offset, &rig.mapped), 0);
	CHECK_EQ(mprotect(rig.mapped, CPU_PAGE, READ_WRITE), -1);
	CHECK_EQ(errno, EACCES);
	CHECK_EQ(load_signal(rig.mapped), 0);
}

RIG_MAIN(TEST(stores_reach_the_gpus_memory), TEST(every_page_is_write_combined),
	 TEST(every_page_of_a_part_is_write_combined),
	 TEST(every_page_of_scattered_memory_is_write_combined),
	 TEST(any_size_up_to_the_pins_is_mapped_from_its_start),
	 TEST(a_size_of_0_or_beyond_the_pin_is_invalid),
	 TEST(an_offset_that_is_not_the_handles_is_invalid), TEST(a_private_mapping_is_invalid),
	 TEST(a_mapping_is_never_executable), TEST(a_pin_is_mapped_once_at_a_time),
	 TEST(a_pin_that_begins_inside_a_gpu_page_is_not_mapped_by_its_handle),
	 TEST(a_part_cannot_be_unmapped), TEST(a_part_cannot_be_protected_alone),
	 TEST(a_mapping_neither_grows_nor_shrinks_nor_doubles), TEST(a_part_cannot_be_moved_away),
	 TEST(a_mapping_that_was_moved_is_still_the_pins),
	 TEST(a_mapping_cannot_be_asked_to_stay_in_children), TEST(unpinning_ends_the_mapping),
	 TEST(a_mapping_keeps_the_pin_of_a_closed_node),
	 TEST(a_persistent_mapping_outlives_the_freeing),
	 TEST(a_node_opened_for_reading_maps_for_reading))
