/* SPDX-License-Identifier: MIT */
/* Several GPUs: a pin is of the one that its memory is on, whichever context is current. */
#include "rig.h"

/* As many as there are of so many, and two at least. */
#define MOST_DEVICES 3

static CUcontext contexts[MOST_DEVICES];
static int devices;

static void use_device(int device)
{
	if (!contexts[device])
		OK(cuDevicePrimaryCtxRetain(&contexts[device], device));
	OK(cuCtxSetCurrent(contexts[device]));
}

static void each_pin_shows_the_memory_of_its_device(void)
{
	CUdeviceptr pointers[MOST_DEVICES];
	struct view views[MOST_DEVICES];
	gdr_t gdr = opened();

	for (int i = 0; i < devices; i++) {
		use_device(i);
		pointers[i] = allocate(5000);
	}
	for (int i = 0; i < devices; i++) {
		use_device((i + 1) % devices);
		views[i] = viewed(gdr, pointers[i], 5000);
		memset(views[i].bytes, 'a' + i, 5000);
	}
	for (int i = 0; i < devices; i++) {
		unsigned char found[5000], expected[5000];

		use_device(i);
		memset(expected, 'a' + i, sizeof(expected));
		gpu_read(pointers[i], found, sizeof(found));
		CHECK_MEM_EQ(found, expected, sizeof(found));
		close_view(&views[i]);
		OK(cuMemFree_v2(pointers[i]));
	}
	use_device(0);
	CHECK_EQ(gdr_close(gdr), 0);
}

static void the_current_context_stays_as_it_was(void)
{
	CUdeviceptr pointer;
	CUcontext current;
	struct view view;
	gdr_t gdr;

	use_device(devices - 1);
	pointer = allocate(GRANULE);
	use_device(devices - 2);
	gdr = opened();
	view = viewed(gdr, pointer, GRANULE);
	OK(cuCtxGetCurrent(&current));
	CHECK(current == contexts[devices - 2]);
	OK(cuCtxSetCurrent(NULL));
	close_view(&view);
	view = viewed(gdr, pointer, GRANULE);
	OK(cuCtxGetCurrent(&current));
	CHECK(!current);
	close_view(&view);
	CHECK_EQ(gdr_close(gdr), 0);
	use_device(devices - 1);
	OK(cuMemFree_v2(pointer));
	use_device(0);
}

/* Each device has checks, and things of its own that are kept. */
static void warm_up_all(void)
{
	for (int i = 0; i < devices; i++) {
		use_device(i);
		warm_up();
	}
	use_device(0);
}

int main(int argc, char **argv)
{
	static const struct check_test tests[] = {
		TEST(each_pin_shows_the_memory_of_its_device),
		TEST(the_current_context_stays_as_it_was),
	};

	setenv("GDRPY_SIM_DEVICES", "3", 1);
	OK(cuInit(0));
	OK(cuDeviceGetCount(&devices));
	CHECK(devices >= 2);
	if (devices > MOST_DEVICES)
		devices = MOST_DEVICES;
	warm_up_all();
	return rig_run(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
