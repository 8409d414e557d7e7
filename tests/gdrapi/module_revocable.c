/* SPDX-License-Identifier: MIT */
/* On a kernel module that was loaded with use_persistent_mapping=0: freeing ends what is pinned. */
#include "rig.h"

static int flag_of(gdr_t gdr, gdr_mh_t handle)
{
	int flag = -1;

	CHECK_EQ(gdr_get_callback_flag(gdr, handle, &flag), 0);
	return flag;
}

static void the_attribute_says_so(void)
{
	gdr_t gdr = opened();
	int value = -1;

	CHECK_EQ(gdr_get_attribute(gdr, GDR_ATTR_USE_PERSISTENT_MAPPING, &value), 0);
	CHECK_EQ(value, 0);
	CHECK_EQ(gdr_close(gdr), 0);
}

static void the_flag_is_set_when_the_memory_is_freed(void)
{
	CUdeviceptr pointer = allocate(GRANULE), other = allocate(GRANULE);
	gdr_t gdr = opened();
	gdr_mh_t handle = pinned(gdr, pointer, GRANULE), kept = pinned(gdr, other, GRANULE);

	CHECK_EQ(flag_of(gdr, handle), 0);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(flag_of(gdr, handle), 1);
	CHECK_EQ(flag_of(gdr, kept), 0);
	CHECK_EQ(gdr_unpin_buffer(gdr, handle), 0);
	CHECK_EQ(gdr_unpin_buffer(gdr, kept), 0);
	OK(cuMemFree_v2(other));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void a_mapping_is_given_back_after_the_memory_was_freed(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	struct view view = viewed(gdr, pointer, GRANULE);

	*view.bytes = 1;
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(flag_of(gdr, view.handle), 1);
	close_view(&view);
	CHECK_EQ(gdr_close(gdr), 0);
}

static void freed_memory_cannot_be_mapped(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	gdr_mh_t handle = pinned(gdr, pointer, GRANULE);
	void *va;

	OK(cuMemFree_v2(pointer));
	CHECK(gdr_map(gdr, handle, &va, GRANULE));
	CHECK_EQ(gdr_unpin_buffer(gdr, handle), 0);
	CHECK_EQ(gdr_close(gdr), 0);
}

static void closing_gives_back_what_was_freed(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();

	viewed(gdr, pointer, GRANULE);
	pinned(gdr, pointer, GRANULE);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

RIG_MAIN(TEST(the_attribute_says_so), TEST(the_flag_is_set_when_the_memory_is_freed),
	 TEST(a_mapping_is_given_back_after_the_memory_was_freed),
	 TEST(freed_memory_cannot_be_mapped), TEST(closing_gives_back_what_was_freed))
