/* SPDX-License-Identifier: MIT */
/* For tests that run with the simulated resource manager preloaded. */
#ifndef FAKERM_PRELOADED_H
#define FAKERM_PRELOADED_H

#include <dlfcn.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/mman.h>

#include "../c/check.h"

static int (*count)(const char *what);
static int (*set_fault)(const char *specification);
static void (*pass_time)(unsigned int seconds, bool at_look);

static void __attribute__((constructor)) find_library(void)
{
	count = (int (*)(const char *))dlsym(RTLD_DEFAULT, "fakerm_count");
	set_fault = (int (*)(const char *))dlsym(RTLD_DEFAULT, "fakerm_set_fault");
	pass_time = (void (*)(unsigned int, bool))dlsym(RTLD_DEFAULT, "fakerm_pass_time");
	CHECK(count && set_fault && pass_time);
}

/* A descriptor of GPU memory, as CUDA would export it. */
static inline int gpu_memory(size_t nbytes)
{
	int fd = memfd_create("gdrpy-sim-dev0", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	CHECK(fd >= 0);
	CHECK_EQ(ftruncate(fd, nbytes), 0);
	CHECK_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
	return fd;
}

#endif
