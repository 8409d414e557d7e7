/* SPDX-License-Identifier: MIT */
/* Injected faults, and how often each function was called. The caller holds the lock. */
#ifndef GDRPY_SIM_FAULT_H
#define GDRPY_SIM_FAULT_H

#include "sim.h"

/*
 * "cuMemCreate:3,cuMemMap:1:2": the third call of cuMemCreate from now fails with
 * CUDA_ERROR_OUT_OF_MEMORY, the next one of cuMemMap with CUresult 2. False, with nothing changed,
 * if the text is invalid.
 */
bool fault_set(const char *spec);

/* Counts a call. Returns the injected fault, or CUDA_SUCCESS. */
CUresult fault_take(enum sim_function function);

#endif
