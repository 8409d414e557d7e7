/* SPDX-License-Identifier: MIT */
/* Mapping a pin for the CPU, and what becomes of mappings that nobody gives back. */
#include "rig.h"

static void a_mapping_begins_where_its_info_says(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	gdr_mh_t handle = pinned(gdr, pointer + 70000, 1000);
	gdr_info_v2_t info = info_of(gdr, handle);
	void *va;

	CHECK_EQ(gdr_map(gdr, handle, &va, info.mapped_size), 0);
	CHECK_EQ((uintptr_t)va % 4096, 0);
	check_same_memory(va, info.va);
	check_same_memory((unsigned char *)va + 4464, info.va + 4464);
	check_same_memory((unsigned char *)va + info.mapped_size - 1,
			  info.va + info.mapped_size - 1);
	CHECK_EQ(gdr_unmap(gdr, handle, va, info.mapped_size), 0);
	CHECK_EQ(gdr_unpin_buffer(gdr, handle), 0);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void a_part_from_the_start_can_be_mapped(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	gdr_mh_t handle = pinned(gdr, pointer, GRANULE);
	static const size_t sizes[] = {1, 4095, 4096, 4097, 65536, 100001, GRANULE};
	void *va;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		CHECK_EQ(gdr_map(gdr, handle, &va, sizes[i]), 0);
		check_same_memory((unsigned char *)va + sizes[i] - 1, pointer + sizes[i] - 1);
		CHECK_EQ(gdr_unmap(gdr, handle, va, sizes[i]), 0);
	}
	CHECK_EQ(gdr_unpin_buffer(gdr, handle), 0);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

/* As callers do that know nothing of pages: they map the size that they have pinned. */
static void what_was_pinned_is_mapped_whatever_its_address(void)
{
	CUdeviceptr pointer = allocate(GRANULE) + 65536 + 4090;
	unsigned char sent[70000], found[70000];
	gdr_t gdr = opened();
	gdr_mh_t handle = pinned(gdr, pointer, sizeof(sent));
	uint64_t lead = pointer - info_of(gdr, handle).va;
	void *va;

	for (size_t i = 0; i < sizeof(sent); i++)
		sent[i] = (unsigned char)(i * 3);
	CHECK_EQ(lead, 4090);
	CHECK_EQ(gdr_map(gdr, handle, &va, sizeof(sent)), 0);
	CHECK_EQ(gdr_copy_to_mapping(handle, (char *)va + lead, sent, sizeof(sent)), 0);
	gpu_read(pointer, found, sizeof(found));
	CHECK_MEM_EQ(found, sent, sizeof(found));
	CHECK_EQ(gdr_unmap(gdr, handle, va, sizeof(sent)), 0);
	CHECK_EQ(gdr_unpin_buffer(gdr, handle), 0);
	OK(cuMemFree_v2(pointer - 65536 - 4090));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void info_tells_how_it_is_mapped_while_it_is(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	struct view view = viewed(gdr, pointer, GRANULE);
	gdr_info_v2_t info = info_of(gdr, view.handle);

	CHECK_EQ(info.mapped, 1);
	CHECK_EQ(info.mapping_type, expected_type());
	CHECK_EQ(info.wc_mapping, expected_type() == GDR_MAPPING_TYPE_WC);
	CHECK_EQ(gdr_unmap(gdr, view.handle, view.va, view.size), 0);
	info = info_of(gdr, view.handle);
	CHECK_EQ(info.mapped, 0);
	CHECK_EQ(info.mapping_type, GDR_MAPPING_TYPE_NONE);
	CHECK_EQ(info.wc_mapping, 0);
	CHECK_EQ(gdr_unpin_buffer(gdr, view.handle), 0);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void a_pin_is_mapped_once_at_a_time(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	struct view view = viewed(gdr, pointer, GRANULE);
	void *again = NULL;

	CHECK_EQ(gdr_map(gdr, view.handle, &again, GRANULE), EAGAIN);
	CHECK_EQ(gdr_map_v2(gdr, view.handle, &again, 1, 0), EAGAIN);
	CHECK(!again);
	check_same_memory(view.bytes, pointer);
	CHECK_EQ(gdr_unmap(gdr, view.handle, view.va, view.size), 0);
	CHECK_EQ(gdr_map(gdr, view.handle, &view.va, view.size), 0);
	check_same_memory(view.va, pointer);
	close_view(&view);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void a_size_that_the_pin_does_not_have_is_refused(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	gdr_mh_t handle = pinned(gdr, pointer, 100);
	size_t size = info_of(gdr, handle).mapped_size;
	void *va;

	CHECK_EQ(gdr_map(gdr, handle, &va, 0), EINVAL);
	CHECK_EQ(gdr_map(gdr, handle, &va, size + 1), EINVAL);
	CHECK_EQ(gdr_map(gdr, handle, &va, 1ul << 40), EINVAL);
	CHECK_EQ(gdr_map(gdr, handle, &va, SIZE_MAX), EINVAL);
	CHECK_EQ(gdr_map(gdr, handle, &va, SIZE_MAX - 4094), EINVAL);
	CHECK_EQ(info_of(gdr, handle).mapped, 0);
	CHECK_EQ(gdr_unpin_buffer(gdr, handle), 0);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void only_what_is_mapped_is_unmapped(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	struct view view = viewed(gdr, pointer, GRANULE);
	unsigned char *va = view.va;
	static unsigned char not_ours[4096] __attribute__((aligned(4096)));

	CHECK_EQ(gdr_unmap(gdr, view.handle, va + 4096, view.size), EINVAL);
	CHECK_EQ(gdr_unmap(gdr, view.handle, va + 1, view.size), EINVAL);
	CHECK_EQ(gdr_unmap(gdr, view.handle, NULL, view.size), EINVAL);
	CHECK_EQ(gdr_unmap(gdr, view.handle, not_ours, sizeof(not_ours)), EINVAL);
	not_ours[0] = 1;
	check_same_memory(view.bytes, pointer);
	CHECK_EQ(gdr_unmap(gdr, view.handle, va, view.size), 0);
	CHECK_EQ(gdr_unmap(gdr, view.handle, va, view.size), EINVAL);
	CHECK_EQ(gdr_unpin_buffer(gdr, view.handle), 0);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void another_pins_mapping_is_not_unmapped(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	struct view one = viewed(gdr, pointer, GRANULE), other = viewed(gdr, pointer, GRANULE);

	CHECK_EQ(gdr_unmap(gdr, one.handle, other.va, other.size), EINVAL);
	check_same_memory(other.bytes, pointer);
	close_view(&one);
	close_view(&other);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void unpinning_unmaps_first(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	struct view view = viewed(gdr, pointer, GRANULE);
	int mappings = count_mappings();

	CHECK_EQ(gdr_unpin_buffer(gdr, view.handle), 0);
	CHECK(count_mappings() < mappings);
	CHECK_EQ(gdr_unmap(gdr, view.handle, view.va, view.size), EINVAL);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void closing_gives_back_whatever_is_left(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened(), other = opened();
	struct view kept = viewed(other, pointer, GRANULE);

	for (int i = 0; i < 100; i++) {
		pinned(gdr, pointer + i, 1);
		viewed(gdr, pointer + i, GRANULE - i);
	}
	CHECK_EQ(gdr_close(gdr), 0);
	check_same_memory(kept.bytes, pointer);
	close_view(&kept);
	CHECK_EQ(gdr_close(other), 0);
	OK(cuMemFree_v2(pointer));
}

static void the_kind_of_mapping_can_be_asked_for(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	gdr_mh_t handle = pinned(gdr, pointer, GRANULE);
	void *va;

	CHECK_EQ(gdr_map_v2(gdr, handle, &va, GRANULE, GDR_MAP_FLAG_DEFAULT), 0);
	CHECK_EQ(info_of(gdr, handle).mapping_type, expected_type());
	CHECK_EQ(gdr_unmap(gdr, handle, va, GRANULE), 0);
	/* The numbers of the flags are those of the types. */
	CHECK_EQ(gdr_map_v2(gdr, handle, &va, GRANULE, (int)expected_type()), 0);
	CHECK_EQ(info_of(gdr, handle).mapping_type, expected_type());
	CHECK_EQ(gdr_unmap(gdr, handle, va, GRANULE), 0);
	CHECK_EQ(gdr_unpin_buffer(gdr, handle), 0);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

/* On x86 memory has one kind. */
static void a_kind_that_cannot_be_is_refused(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	gdr_mh_t handle = pinned(gdr, pointer, GRANULE);
	void *va;

	for (int type = GDR_MAPPING_TYPE_WC; type <= GDR_MAPPING_TYPE_DEVICE; type++) {
		if (type != (int)expected_type())
			CHECK_EQ(gdr_map_v2(gdr, handle, &va, GRANULE, type), EINVAL);
	}
	CHECK_EQ(gdr_map_v2(gdr, handle, &va, GRANULE, 4), EINVAL);
	CHECK_EQ(gdr_map_v2(gdr, handle, &va, GRANULE, -1), EINVAL);
	CHECK_EQ(info_of(gdr, handle).mapped, 0);
	CHECK_EQ(gdr_map(gdr, handle, &va, GRANULE), 0);
	CHECK_EQ(gdr_unpin_buffer(gdr, handle), 0);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void memory_stays_when_its_owner_frees_it(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	struct view view = viewed(gdr, pointer, GRANULE);
	int flag = -1;

	memcpy(view.bytes, "kept", 4);
	OK(cuMemFree_v2(pointer));
	CHECK_MEM_EQ(view.bytes, "kept", 4);
	view.bytes[GRANULE - 1] = 1;
	CHECK_EQ(gdr_get_callback_flag(gdr, view.handle, &flag), 0);
	CHECK_EQ(flag, 0);
	close_view(&view);
	CHECK_EQ(gdr_close(gdr), 0);
}

RIG_MAIN(TEST(a_mapping_begins_where_its_info_says), TEST(a_part_from_the_start_can_be_mapped),
	 TEST(what_was_pinned_is_mapped_whatever_its_address),
	 TEST(info_tells_how_it_is_mapped_while_it_is), TEST(a_pin_is_mapped_once_at_a_time),
	 TEST(a_size_that_the_pin_does_not_have_is_refused), TEST(only_what_is_mapped_is_unmapped),
	 TEST(another_pins_mapping_is_not_unmapped), TEST(unpinning_unmaps_first),
	 TEST(closing_gives_back_whatever_is_left), TEST(the_kind_of_mapping_can_be_asked_for),
	 TEST(a_kind_that_cannot_be_is_refused), TEST(memory_stays_when_its_owner_frees_it))
