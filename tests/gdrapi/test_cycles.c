/* SPDX-License-Identifier: MIT */
/* Ten thousand times the same: nothing grows. */
#include "rig.h"

#define CYCLES 10000

static void pinning_and_mapping_leave_nothing_behind(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	struct usage before = usage(), after;

	for (int i = 0; i < CYCLES; i++) {
		struct view view = viewed(gdr, pointer + i, 1 + i % 3000);

		*view.bytes = (unsigned char)i;
		close_view(&view);
	}
	after = usage();
	CHECK_EQ(after.descriptors, before.descriptors);
	CHECK_EQ(after.mappings, before.mappings);
	CHECK_EQ(after.free, before.free);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void allocating_and_pinning_leave_nothing_behind(void)
{
	gdr_t gdr = opened();

	for (int i = 0; i < CYCLES / 10; i++) {
		CUdeviceptr pointer = allocate(i % 2 ? 5000 : 2 * GRANULE);
		struct view view = viewed(gdr, pointer, 5000);

		*view.bytes = (unsigned char)i;
		if (i % 3)
			OK(cuMemFree_v2(pointer));
		close_view(&view);
		if (i % 3 == 0)
			OK(cuMemFree_v2(pointer));
	}
	CHECK_EQ(gdr_close(gdr), 0);
}

static void opening_and_closing_leave_nothing_behind(void)
{
	CUdeviceptr pointer = allocate(GRANULE);

	for (int i = 0; i < CYCLES / 10; i++) {
		gdr_t gdr = opened();

		if (i % 2)
			viewed(gdr, pointer, GRANULE);
		else
			pinned(gdr, pointer, GRANULE);
		CHECK_EQ(gdr_close(gdr), 0);
	}
	OK(cuMemFree_v2(pointer));
}

RIG_MAIN(TEST(pinning_and_mapping_leave_nothing_behind),
	 TEST(allocating_and_pinning_leave_nothing_behind),
	 TEST(opening_and_closing_leave_nothing_behind))
