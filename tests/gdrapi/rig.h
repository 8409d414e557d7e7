/* SPDX-License-Identifier: MIT */
/*
 * What the programs share: a started GPU, the library's calls where they must succeed,
 * and the check that each test leaves the process, and the driver, as it found them.
 *
 * GDRPY_BACKEND says which backend serves. Where it is unset, that is nvrm on a real GPU; on the
 * simulated one gdrdrv if its memory is on a PCI bar, else sim.
 */
#ifndef GDRPY_TESTS_GDRAPI_RIG_H
#define GDRPY_TESTS_GDRAPI_RIG_H

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "../c/test_sim.h"
#include "gdrapi.h"

#define GPU_PAGE ((size_t)65536)
#define ENOTSUPP 524 /* the kernel's own, which NVIDIA's module passes on */

static inline const char *backend(void)
{
	int (*on_bar)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "gdrsim_on_bar");
	const char *forced = getenv("GDRPY_BACKEND");

	if (forced)
		return forced;
	if (!on_bar)
		return "nvrm";
	return on_bar() ? "gdrdrv" : "sim";
}

static inline bool backend_is(const char *name)
{
	return !strcmp(backend(), name);
}

/* Simulated memory is ordinary memory, unless something maps it as it would a GPU's. */
static inline gdr_mapping_type_t expected_type(void)
{
	return backend_is("sim") || backend_is("dmabuf") ? GDR_MAPPING_TYPE_CACHING
							 : GDR_MAPPING_TYPE_WC;
}

/* The answer to GDR_PIN_FLAG_FORCE_PCIE: nothing here is coherent but what the module plays. */
static inline int expected_of_forced_pcie(void)
{
	return backend_is("gdrdrv") ? 0 : ENOTSUPP;
}

static inline gdr_t opened(void)
{
	gdr_t gdr = gdr_open();

	CHECK(gdr);
	return gdr;
}

static inline gdr_mh_t pinned(gdr_t gdr, CUdeviceptr pointer, size_t nbytes)
{
	gdr_mh_t handle;

	CHECK_EQ(gdr_pin_buffer(gdr, pointer, nbytes, 0, 0, &handle), 0);
	return handle;
}

/* The errno of a pin that must be refused. */
static inline int refused(gdr_t gdr, CUdeviceptr pointer, size_t nbytes)
{
	gdr_mh_t handle = {0};
	int error = gdr_pin_buffer(gdr, pointer, nbytes, 0, 0, &handle);

	CHECK(error);
	return error;
}

static inline gdr_info_v2_t info_of(gdr_t gdr, gdr_mh_t handle)
{
	gdr_info_v2_t info;

	CHECK_EQ(gdr_get_info_v2(gdr, handle, &info), 0);
	return info;
}

/* A pin that is mapped as a whole. */
struct view {
	gdr_t gdr;
	gdr_mh_t handle;
	void *va;
	size_t size;
	unsigned char *bytes; /* at the pointer that was pinned */
};

static inline struct view viewed(gdr_t gdr, CUdeviceptr pointer, size_t nbytes)
{
	struct view view = {.gdr = gdr, .handle = pinned(gdr, pointer, nbytes)};
	gdr_info_v2_t info = info_of(gdr, view.handle);

	view.size = info.mapped_size;
	CHECK_EQ(gdr_map(gdr, view.handle, &view.va, view.size), 0);
	view.bytes = (unsigned char *)view.va + (pointer - info.va);
	return view;
}

static inline void close_view(struct view *view)
{
	CHECK_EQ(gdr_unmap(view->gdr, view->handle, view->va, view->size), 0);
	CHECK_EQ(gdr_unpin_buffer(view->gdr, view->handle), 0);
}

/* The bytes at a GPU address, by the driver's own copy. */
static inline void gpu_read(CUdeviceptr pointer, void *bytes, size_t nbytes)
{
	OK(cuMemcpyDtoH_v2(bytes, pointer, nbytes));
}

static inline void gpu_write(CUdeviceptr pointer, const void *bytes, size_t nbytes)
{
	OK(cuMemcpyHtoD_v2(pointer, bytes, nbytes));
	OK(cuCtxSynchronize());
}

/* Whether the CPU's view at an address, and the GPU's at another, are of the same bytes. */
static inline void check_same_memory(volatile unsigned char *cpu, CUdeviceptr gpu)
{
	unsigned char byte = (unsigned char)(*cpu + 1);

	*cpu = byte;
	gpu_read(gpu, &byte, 1);
	CHECK_EQ(byte, *cpu);
	byte++;
	gpu_write(gpu, &byte, 1);
	CHECK_EQ(*cpu, byte);
}

/* What a process has of the GPU. */
struct usage {
	int descriptors;
	int mappings;
	size_t free;
};

static inline int count_mappings(void)
{
	static const char *const names[] = {"/dev/nvidia", "/memfd:gdrpy-sim", "/dev/gpustandin",
					    "gdrdrv"};
	FILE *file = fopen("/proc/self/maps", "r");
	char line[512];
	int count = 0;

	CHECK(file);
	while (fgets(line, sizeof(line), file)) {
		for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
			if (strstr(line, names[i])) {
				count++;
				break;
			}
		}
	}
	fclose(file);
	return count;
}

static inline struct usage usage(void)
{
	return (struct usage){count_descriptors(), count_mappings(), free_memory()};
}

/* Whether the resource manager is the simulated one. */
static inline bool managed(void)
{
	return dlsym(RTLD_DEFAULT, "fakerm_count");
}

/* What the simulated resource manager counts, 0 where it is not preloaded. */
static inline int manager_count(const char *what)
{
	int (*count)(const char *) = (int (*)(const char *))dlsym(RTLD_DEFAULT, "fakerm_count");

	return count ? count(what) : 0;
}

static struct usage usage_before;

static inline void check_nothing_left(void)
{
	struct usage now = usage();

	CHECK_EQ(now.descriptors, usage_before.descriptors);
	CHECK_EQ(now.mappings, usage_before.mappings);
	CHECK_EQ(now.free, usage_before.free);
	CHECK_EQ(manager_count("objects"), 0);
	CHECK_EQ(manager_count("mappings"), 0);
	CHECK_EQ(manager_count("violations"), 0);
}

/* Has made what a process makes once and keeps: the driver's client, its checks, its exports. */
static inline void warm_up(void)
{
	CUmemGenericAllocationHandle memory = create(GRANULE);
	CUdeviceptr pointers[] = {allocate(GRANULE), map(memory, GRANULE)};
	gdr_t gdr = opened();

	for (int i = 0; i < 2; i++) {
		struct view view = viewed(gdr, pointers[i], 1);

		close_view(&view);
	}
	CHECK_EQ(gdr_close(gdr), 0);
	OK(cuMemFree_v2(pointers[0]));
	unmap(pointers[1], GRANULE);
	OK(cuMemRelease(memory));
}

static inline int rig_run(int argc, char **argv, const struct check_test *tests, size_t ntests)
{
	check_current = "(warming up)";
	start();
	warm_up();
	usage_before = usage();
	check_after_each = check_nothing_left;
	return check_run(argc, argv, tests, ntests);
}

#define RIG_MAIN(...)                                                                              \
	int main(int argc, char **argv)                                                            \
	{                                                                                          \
		static const struct check_test tests[] = {__VA_ARGS__};                            \
		return rig_run(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));               \
	}

#endif
