/* SPDX-License-Identifier: MIT */
/*
 * CUDA, or the resource manager, refuses one call: the library's call fails with the errno, leaves
 * nothing behind, and is answered when it is made again.
 */
#include <sys/resource.h>

#include "rig.h"

/* One attempt at everything; what it made, it gives back. 0, or the errno that stopped it. */
static int whole_sequence(gdr_t gdr, CUdeviceptr pointer)
{
	gdr_mh_t handle;
	size_t size;
	int error;
	void *va;

	error = gdr_pin_buffer(gdr, pointer, 1000, 0, 0, &handle);
	if (error)
		return error;
	size = info_of(gdr, handle).mapped_size;
	error = gdr_map(gdr, handle, &va, size);
	if (error) {
		CHECK_EQ(info_of(gdr, handle).mapped, 0);
		CHECK_EQ(gdr_unpin_buffer(gdr, handle), 0);
		return error;
	}
	CHECK_EQ(gdr_unmap(gdr, handle, va, size), 0);
	CHECK_EQ(gdr_unpin_buffer(gdr, handle), 0);
	return 0;
}

static void a_call_that_cuda_refuses_leaves_nothing(void)
{
#define SIM_FUNCTION(symbol, base, version, parameters) #base,
	static const char *const functions[] = {
#include "functions.h"
	};
	CUmemGenericAllocationHandle memory = create(GRANULE);
	CUdeviceptr pointers[] = {allocate(GRANULE), map(memory, GRANULE)};
	gdr_t gdr = opened();
	int refusals = 0;

	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		for (int which = 0; which < 2; which++) {
			char fault[64];
			int error;

			/* What cannot be given back stays. */
			if (!strcmp(functions[i], "cuMemRelease"))
				continue;
			snprintf(fault, sizeof(fault), "%s:1:999", functions[i]);
			CHECK_EQ(gdrsim_set_fault(fault), 0);
			error = whole_sequence(gdr, pointers[which]);
			CHECK_EQ(gdrsim_set_fault(""), 0);
			CHECK(error >= 0);
			refusals += error != 0;
			CHECK_EQ(whole_sequence(gdr, pointers[which]), 0);
		}
	}
	CHECK(refusals > 0);
	unmap(pointers[1], GRANULE);
	OK(cuMemRelease(memory));
	OK(cuMemFree_v2(pointers[0]));
	CHECK_EQ(gdr_close(gdr), 0);
}

/* Some backends take one for a pin, others for a moment, to map it; a manager has some of its own.
 */
static void a_process_without_descriptors_left_is_told_so(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();

	for (int left = 0; left < 4; left++) {
		struct rlimit before, few;
		int taken[64], count = 0, error;

		CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
		few = (struct rlimit){64, before.rlim_max};
		CHECK_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
		while ((taken[count] = dup(0)) >= 0)
			count++;
		for (int i = 0; i < left; i++)
			close(taken[--count]);
		error = whole_sequence(gdr, pointer);
		while (count)
			close(taken[--count]);
		CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
		if (!left)
			CHECK(error == EMFILE || (error && backend_is("nvrm")));
		CHECK_EQ(whole_sequence(gdr, pointer), 0);
	}
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void check_refusal(gdr_t gdr, CUdeviceptr pointer, const char *fault, int error)
{
	int (*set_fault)(const char *) =
		(int (*)(const char *))dlsym(RTLD_DEFAULT, "fakerm_set_fault");

	CHECK(set_fault);
	CHECK_EQ(set_fault(fault), 0);
	CHECK_EQ(whole_sequence(gdr, pointer), error);
	CHECK_EQ(set_fault(""), 0);
	CHECK_EQ(manager_count("objects"), 0);
	CHECK_EQ(manager_count("mappings"), 0);
	CHECK_EQ(whole_sequence(gdr, pointer), 0);
}

/* The statuses, and what they are as an errno: no memory, no permission, no such object. */
static void a_call_that_the_manager_refuses_gives_its_errno(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();

	check_refusal(gdr, pointer, "RM_DUP_OBJECT:1:0x51", ENOMEM);
	check_refusal(gdr, pointer, "RM_DUP_OBJECT:1:0x1a", ENOMEM);
	check_refusal(gdr, pointer, "RM_DUP_OBJECT:1:0x1b", EACCES);
	check_refusal(gdr, pointer, "RM_MAP_MEMORY:1:0x51", ENOMEM);
	check_refusal(gdr, pointer, "RM_MAP_MEMORY:1:0x1f", EINVAL);
	check_refusal(gdr, pointer, "mmap:1:12", ENOMEM);
	check_refusal(gdr, pointer, "open:/dev/nvidia0:13", EACCES);
	check_refusal(gdr, pointer, "GET_SURFACE_INFO:1:0x51", ENOMEM);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void an_import_that_the_manager_refuses_gives_its_errno(void)
{
	CUmemGenericAllocationHandle memory = create(GRANULE);
	CUdeviceptr pointer = map(memory, GRANULE);
	gdr_t gdr = opened();
	char fault[32];

	/* Which GPU it is, the import, the size. */
	for (int nth = 1; nth <= 3; nth++) {
		snprintf(fault, sizeof(fault), "RM_CONTROL:%d:0x51", nth);
		check_refusal(gdr, pointer, fault, ENOMEM);
	}
	check_refusal(gdr, pointer, "RM_MAP_MEMORY:1:0x51", ENOMEM);
	unmap(pointer, GRANULE);
	OK(cuMemRelease(memory));
	CHECK_EQ(gdr_close(gdr), 0);
}

/* Of two allocations side by side the second one is refused, when it is pinned or mapped. */
static void the_first_part_is_given_back_if_the_second_is_refused(void)
{
	CUmemGenericAllocationHandle memories[] = {create(GRANULE), create(GRANULE)};
	CUdeviceptr pointer = reserve(2 * GRANULE);
	CUdeviceptr seam = pointer + GRANULE;
	gdr_t gdr = opened();

	OK(cuMemMap(pointer, GRANULE, 0, memories[0], 0));
	OK(cuMemMap(seam, GRANULE, 0, memories[1], 0));
	OK(set_access(pointer, 2 * GRANULE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
	check_refusal(gdr, seam - 500, "IMPORT_OBJECTS_FROM_FD:2:0x51", ENOMEM);
	check_refusal(gdr, seam - 500, "RM_MAP_MEMORY:2:0x51", ENOMEM);
	check_refusal(gdr, seam - 500, "mmap:2:12", ENOMEM);
	OK(cuMemUnmap(pointer, 2 * GRANULE));
	OK(cuMemAddressFree(pointer, 2 * GRANULE));
	OK(cuMemRelease(memories[0]));
	OK(cuMemRelease(memories[1]));
	CHECK_EQ(gdr_close(gdr), 0);
}

int main(int argc, char **argv)
{
	static const struct check_test tests[] = {
		TEST(a_call_that_cuda_refuses_leaves_nothing),
		TEST(a_process_without_descriptors_left_is_told_so),
		TEST(a_call_that_the_manager_refuses_gives_its_errno),
		TEST(an_import_that_the_manager_refuses_gives_its_errno),
		TEST(the_first_part_is_given_back_if_the_second_is_refused),
	};

	return rig_run(argc, argv, tests, backend_is("nvrm") ? 5 : 2);
}
