/* SPDX-License-Identifier: MIT */
/* Handles that name nothing, or nothing any more, and arguments that are missing. */
#include <limits.h>

#include "rig.h"

/* Every call that takes a handle, where that must be refused; other is a pin that is mapped. */
static void check_no_pin(gdr_t gdr, gdr_mh_t handle, const struct view *other)
{
	unsigned char bytes[8] = {0};
	gdr_info_v2_t info;
	void *va = bytes;
	int flag;

	CHECK_EQ(gdr_get_info_v2(gdr, handle, &info), EINVAL);
	CHECK_EQ(gdr_get_callback_flag(gdr, handle, &flag), EINVAL);
	CHECK_EQ(gdr_map(gdr, handle, &va, 4096), EINVAL);
	CHECK_EQ(gdr_map_v2(gdr, handle, &va, 4096, 0), EINVAL);
	CHECK_EQ(gdr_unmap(gdr, handle, other->va, other->size), EINVAL);
	CHECK_EQ(gdr_copy_to_mapping(handle, other->bytes, bytes, 8), EINVAL);
	CHECK_EQ(gdr_copy_from_mapping(handle, bytes, other->bytes, 8), EINVAL);
	CHECK_EQ(gdr_unpin_buffer(gdr, handle), EINVAL);
	CHECK(va == bytes);
}

static void a_handle_that_never_was_is_refused(void)
{
	static const unsigned long numbers[] = {0,	   1,
						2,	   1000,
						1ul << 31, UINT32_MAX,
						1ul << 32, (1ul << 32) + 1,
						1ul << 63, ULONG_MAX - 1,
						ULONG_MAX, 0xDEADBEEFCAFEF00D};
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	struct view view = viewed(gdr, pointer, 1);

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		check_no_pin(gdr, (gdr_mh_t){numbers[i]}, &view);
	check_no_pin(gdr, (gdr_mh_t){(uintptr_t)&gdr}, &view);
	check_no_pin(gdr, (gdr_mh_t){(uintptr_t)gdr}, &view);
	close_view(&view);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void numbers_near_a_handle_are_not_it(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	struct view view = viewed(gdr, pointer, 1);

	for (int bit = 0; bit < 64; bit++)
		check_no_pin(gdr, (gdr_mh_t){view.handle.h ^ 1ul << bit}, &view);
	check_same_memory(view.bytes, pointer);
	close_view(&view);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void a_handle_ends_with_its_pin(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	gdr_mh_t stale = pinned(gdr, pointer, 1);

	CHECK_EQ(gdr_unpin_buffer(gdr, stale), 0);
	for (int i = 0; i < 1000; i++) {
		struct view fresh = viewed(gdr, pointer, 1);

		CHECK(fresh.handle.h != stale.h);
		check_no_pin(gdr, stale, &fresh);
		close_view(&fresh);
		stale = i % 2 ? stale : fresh.handle;
	}
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void a_handle_ends_when_its_library_is_closed(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened(), other = opened();
	struct view view = viewed(gdr, pointer, 1), kept = viewed(other, pointer, 1);

	CHECK_EQ(gdr_close(gdr), 0);
	check_no_pin(other, view.handle, &kept);
	close_view(&kept);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(other), 0);
}

static void a_handle_is_of_the_library_that_pinned_it(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened(), other = opened();
	struct view view = viewed(gdr, pointer, 1);
	gdr_info_v2_t info;
	int flag;

	CHECK_EQ(gdr_get_info_v2(other, view.handle, &info), EINVAL);
	CHECK_EQ(gdr_get_callback_flag(other, view.handle, &flag), EINVAL);
	CHECK_EQ(gdr_unmap(other, view.handle, view.va, view.size), EINVAL);
	CHECK_EQ(gdr_unpin_buffer(other, view.handle), EINVAL);
	check_same_memory(view.bytes, pointer);
	close_view(&view);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
	CHECK_EQ(gdr_close(other), 0);
}

static void many_pins_have_each_a_handle_of_their_own(void)
{
	enum {
		COUNT = 900 /* each may take a descriptor, of which a process has 1024 */
	};
	static gdr_mh_t handles[COUNT];
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();

	for (size_t i = 0; i < COUNT; i++)
		handles[i] = pinned(gdr, pointer + i % 32 * GPU_PAGE, 1);
	for (size_t i = 0; i < COUNT; i++)
		CHECK_EQ(info_of(gdr, handles[i]).va, pointer + i % 32 * GPU_PAGE);
	for (size_t i = 1; i < COUNT; i += 2)
		CHECK_EQ(gdr_unpin_buffer(gdr, handles[i]), 0);
	for (size_t i = 0; i < COUNT; i += 2)
		CHECK_EQ(info_of(gdr, handles[i]).va, pointer + i % 32 * GPU_PAGE);
	for (size_t i = 0; i < COUNT; i += 2)
		CHECK_EQ(gdr_unpin_buffer(gdr, handles[i]), 0);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

/* Every call that takes a library object, where that must be refused. */
static void check_no_library(gdr_t gdr, CUdeviceptr pointer, const struct view *view)
{
	gdr_info_v2_t info;
	int major, minor;
	gdr_mh_t handle;
	void *va;

	CHECK_EQ(gdr_close(gdr), EINVAL);
	CHECK_EQ(gdr_pin_buffer(gdr, pointer, 1, 0, 0, &handle), EINVAL);
	CHECK_EQ(gdr_pin_buffer_v2(gdr, pointer, 1, 0, &handle), EINVAL);
	CHECK_EQ(gdr_unpin_buffer(gdr, view->handle), EINVAL);
	CHECK_EQ(gdr_get_callback_flag(gdr, view->handle, &major), EINVAL);
	CHECK_EQ(gdr_get_info_v2(gdr, view->handle, &info), EINVAL);
	CHECK_EQ(gdr_map(gdr, view->handle, &va, 1), EINVAL);
	CHECK_EQ(gdr_map_v2(gdr, view->handle, &va, 1, 0), EINVAL);
	CHECK_EQ(gdr_unmap(gdr, view->handle, view->va, view->size), EINVAL);
	CHECK_EQ(gdr_driver_get_version(gdr, &major, &minor), EINVAL);
	CHECK_EQ(gdr_get_attribute(gdr, GDR_ATTR_USE_PERSISTENT_MAPPING, &major), EINVAL);
}

static void what_is_no_library_object_is_refused(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened(), closed = opened();
	struct view view = viewed(gdr, pointer, 1);
	uint64_t zeros[16] = {0};

	CHECK_EQ(gdr_close(closed), 0);
	check_no_library(closed, pointer, &view);
	check_no_library(NULL, pointer, &view);
	check_no_library((gdr_t)(uintptr_t)1, pointer, &view);
	check_no_library((gdr_t)(uintptr_t)~0ul, pointer, &view);
	check_no_library((gdr_t)zeros, pointer, &view);
	check_same_memory(view.bytes, pointer);
	close_view(&view);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void nowhere_to_put_an_answer_is_refused(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	gdr_mh_t handle;
	const char *text;
	int number;

	CHECK_EQ(gdr_pin_buffer(gdr, pointer, 1, 0, 0, NULL), EINVAL);
	CHECK_EQ(gdr_pin_buffer_v2(gdr, pointer, 1, 0, NULL), EINVAL);
	handle = pinned(gdr, pointer, 1);
	CHECK_EQ(gdr_get_info_v2(gdr, handle, NULL), EINVAL);
	CHECK_EQ(gdr_get_callback_flag(gdr, handle, NULL), EINVAL);
	CHECK_EQ(gdr_map(gdr, handle, NULL, 4096), EINVAL);
	CHECK_EQ(gdr_map_v2(gdr, handle, NULL, 4096, 0), EINVAL);
	CHECK_EQ(info_of(gdr, handle).mapped, 0);
	CHECK_EQ(gdr_unpin_buffer(gdr, handle), 0);
	CHECK_EQ(gdr_driver_get_version(gdr, NULL, &number), EINVAL);
	CHECK_EQ(gdr_driver_get_version(gdr, &number, NULL), EINVAL);
	CHECK_EQ(gdr_get_attribute(gdr, GDR_ATTR_USE_PERSISTENT_MAPPING, NULL), EINVAL);
	CHECK_EQ(gdr_get_mapping_type_string(GDR_MAPPING_TYPE_WC, NULL), EINVAL);
	CHECK_EQ(gdr_get_mapping_type_string(GDR_MAPPING_TYPE_WC, &text), 0);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

RIG_MAIN(TEST(a_handle_that_never_was_is_refused), TEST(numbers_near_a_handle_are_not_it),
	 TEST(a_handle_ends_with_its_pin), TEST(a_handle_ends_when_its_library_is_closed),
	 TEST(a_handle_is_of_the_library_that_pinned_it),
	 TEST(many_pins_have_each_a_handle_of_their_own),
	 TEST(what_is_no_library_object_is_refused), TEST(nowhere_to_put_an_answer_is_refused))
