/* SPDX-License-Identifier: MIT */
/* Calls that are told to fail, and how often each function was called. The caller holds the lock.
 */
#ifndef GDRPY_SIM_FAULT_H
#define GDRPY_SIM_FAULT_H

#include "sim.h"

/*
 * "cuMemCreate:3,cuMemMap:1:2": the third call of cuMemCreate from now fails with
 * CUDA_ERROR_OUT_OF_MEMORY, the next one of cuMemMap with CUresult 2. False, and nothing is
 * changed, when the text is none of this.
 */
bool fault_set(const char *spec);

/* Counts a call. What it shall fail with, or CUDA_SUCCESS. */
CUresult fault_take(enum sim_function function);

#endif
