/* SPDX-License-Identifier: MIT */
/* Memory that is what a share descriptor of the kernel module shows, until the pin has ended. */
#ifndef GDRPY_MEMORY_SHARE_H
#define GDRPY_MEMORY_SHARE_H

#include "memory/private.h"

/* That of a descriptor, perhaps of another process's pin. NULL with *error filled in. */
struct gdr_memory *gdr_share_take(int fd, struct gdr_error *error);

/* Maps a part that is a share, as struct gdr_memory_functions has it. */
int gdr_share_map(struct gdr_memory *memory, const struct gdr_part *part, uint64_t offset,
		  size_t nbytes, bool readonly, void *at, struct gdr_piece *piece,
		  enum gdr_mapping_kind *kind, struct gdr_error *error);

/* Fill in *error for a pin that has ended; -1. */
int gdr_fail_revoked(struct gdr_error *error);

#endif
