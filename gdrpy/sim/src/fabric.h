/* SPDX-License-Identifier: MIT */
/*
 * Fabric handles: 64 bytes that name memory to other nodes. The simulated ones are valid on one
 * machine, for processes of the same user, while the exporter has the memory.
 */
#ifndef GDRPY_SIM_FABRIC_H
#define GDRPY_SIM_FABRIC_H

#include "block.h"

/* Whether this process may use them: CUDA_SUCCESS, or a driver's error. */
CUresult fabric_check(void);

void fabric_export(const struct block *block, CUmemFabricHandle *handle);

/* The block that a handle names, with a reference. */
CUresult fabric_import(const CUmemFabricHandle *handle, struct block **block);

#endif
