/* SPDX-License-Identifier: MIT */
/* GPU memory of this process, from the stand-in for nvidia.ko. */
#ifndef STRESS_STANDIN_H
#define STRESS_STANDIN_H

#include <stdbool.h>
#include <stdint.h>

#include "gpustandin.h"

/* A descriptor of a new block, which is nowhere yet; or -1 and errno. */
int gpu_memory_new(uint64_t size, bool scattered);
/* From now on until it is freed, or its descriptor closed, a block can be pinned at an address. */
int gpu_memory_place(int fd, uint64_t address);
int gpu_memory_free(int fd, uint64_t address);

/*
 * Whether no block, registration or pin is left; who is not there any more may still be closing, so
 * it looks again for a while.
 */
bool gpu_memory_all_back(struct gpustandin_stats *stats);

#endif
