/* SPDX-License-Identifier: MIT */
/* GPU memory of the calling process, from the stand-in for NVIDIA's driver. */
#ifndef GPU_H
#define GPU_H

#include <sched.h>
#include <stdlib.h>

#include "calls.h"
#include "check.h"
#include "gpustandin.h"

#define GPU_PAGE 65536

struct gpu {
	int fd;
	uint64_t va;
	size_t size;
	unsigned char *bytes; /* as the GPU has them */
};

static inline void gpu_register(const struct gpu *gpu)
{
	CHECK_EQ(call(gpu->fd, GPUSTANDIN_REGISTER, (void *)&gpu->va), 0);
}

static inline struct gpu gpu_alloc_at(uint64_t va, unsigned int pages, uint32_t flags)
{
	struct gpustandin_block block = {.size = (size_t)pages * GPU_PAGE, .flags = flags};
	struct gpu gpu = {.fd = open(GPUSTANDIN_NODE, O_RDWR), .va = va, .size = block.size};

	CHECK(gpu.fd >= 0);
	CHECK_EQ(call(gpu.fd, GPUSTANDIN_CREATE, &block), 0);
	CHECK_EQ(map_share(gpu.fd, 0, gpu.size, &gpu.bytes), 0);
	gpu_register(&gpu);
	return gpu;
}

/* The address says nothing about where the CPU sees it. */
static inline struct gpu gpu_alloc(unsigned int pages)
{
	static uint64_t next = 0x700000000000;
	uint64_t va = next;

	next += 1ull << 32;
	return gpu_alloc_at(va, pages, 0);
}

/* As cuMemFree: the callbacks are made before this returns. */
static inline void gpu_free(const struct gpu *gpu)
{
	CHECK_EQ(call(gpu->fd, GPUSTANDIN_UNREGISTER, (void *)&gpu->va), 0);
}

/* The memory stays, but puts by this process find none of its pins. */
static inline void gpu_forget(const struct gpu *gpu)
{
	CHECK_EQ(call(gpu->fd, GPUSTANDIN_FORGET, (void *)&gpu->va), 0);
}

/* Asks the stand-in something that is not about a block. */
static inline int gpu_ask(unsigned long command, void *argument)
{
	static int fd = -1;

	if (fd < 0)
		fd = open(GPUSTANDIN_NODE, O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0);
	return call(fd, command, argument);
}

static inline struct gpustandin_stats gpu_stats(void)
{
	struct gpustandin_stats stats;

	CHECK_EQ(gpu_ask(GPUSTANDIN_STATS, &stats), 0);
	return stats;
}

static inline uint64_t gpu_pins(void)
{
	struct gpustandin_stats stats = gpu_stats();

	return stats.pins + stats.persistent_pins;
}

static inline void gpu_fail_next_get(int32_t error)
{
	CHECK_EQ(gpu_ask(GPUSTANDIN_FAIL_GET, &error), 0);
}

/* The memory of the next revocable pin is freed while it is being pinned. */
static inline void gpu_free_in_next_get(uint32_t when)
{
	CHECK_EQ(gpu_ask(GPUSTANDIN_FREE_IN_GET, &when), 0);
}

static inline void gpu_hold_callbacks(uint32_t hold)
{
	CHECK_EQ(gpu_ask(GPUSTANDIN_HOLD_CALLBACKS, &hold), 0);
}

static inline void gpu_await_held_callback(void)
{
	while (!gpu_stats().held_callbacks)
		sched_yield();
}

/* -1: no page is mapped there. */
static inline int cache_mode(const void *address)
{
	struct gpustandin_pte pte = {.address = (uintptr_t)address};

	return gpu_ask(GPUSTANDIN_PTE, &pte) ? -1 : (int)pte.mode;
}

static inline int open_parameter(const char *module, const char *name)
{
	char path[128];

	snprintf(path, sizeof(path), "/sys/module/%s/parameters/%s", module, name);
	return open(path, O_WRONLY);
}

/*
 * A parameter of a module: until the test ends, if it is one of restore_parameters(). NVIDIA's own
 * code has not all that ours has; what tests one that is missing is not tested.
 */
static inline void set_parameter(const char *module, const char *name, const char *value)
{
	int fd = open_parameter(module, name);

	if (fd < 0) {
		printf("%s: not tested, %s has no parameter %s\n", check_current, module, name);
		exit(0);
	}
	CHECK_EQ(write(fd, value, strlen(value)), strlen(value));
	close(fd);
}

static inline void restore_parameters(void)
{
	static const char *const values[][3] = {
		{"gpustandin", "table_version", "0x20000"}, {"gpustandin", "table_flags", "0"},
		{"gpustandin", "force_bar1", "1"},	    {"gpustandin", "fail_put", "0"},
		{"gdrdrv", "max_pinned_mib", "0"},
	};

	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
		int fd = open_parameter(values[i][0], values[i][1]);

		if (fd >= 0)
			CHECK_EQ(write(fd, values[i][2], strlen(values[i][2])),
				 strlen(values[i][2]));
		close(fd);
	}
}

#endif
