/* SPDX-License-Identifier: MIT */
/* Memory whose parts are blocks of GPU memory in this process's RM client. */
#ifndef GDRPY_MEMORY_NVRM_H
#define GDRPY_MEMORY_NVRM_H

#include "cuda/ipc.h"
#include "memory/private.h"

/*
 * Such memory, of no part yet. The client is opened by the first, and kept: its devices are costly
 * to make. A forked child opens its own. NULL with *error filled in.
 */
struct gdr_memory *gdr_nvrm_memory(uint64_t va, int device, struct gdr_error *error);

/* Open that client, if it is not open yet. 0, or -1 with *cause filled in. */
int gdr_nvrm_ready(struct gdr_nvrm_error *cause);

/* Of the GPU at a PCI address, which may be NULL for the first, with that client open. */
const struct gdr_nvrm_obstacle *gdr_nvrm_obstacle_at(const int pci[3]);
bool gdr_nvrm_split_at(const int pci[3]);

/*
 * Add [offset, offset + nbytes) of an exported allocation (nbytes 0: all of it), whose descriptor
 * stays the caller's, or of the block that an IPC handle names on the GPU at a PCI address; sibling
 * as in gdr_nvrm_duplicate(). 0, or -1 with *error filled in: GDR_FAILED_UNAVAILABLE where the
 * block is not of the size that its handle says.
 */
int gdr_nvrm_add_export(struct gdr_memory *memory, int fd, uint64_t offset, uint64_t nbytes,
			struct gdr_error *error);
int gdr_nvrm_add_block(struct gdr_memory *memory, const int pci[3], int sibling,
		       const struct gdr_ipc_info *info, uint64_t offset, uint64_t nbytes,
		       struct gdr_error *error);

#endif
