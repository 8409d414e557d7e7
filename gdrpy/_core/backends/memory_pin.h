/* SPDX-License-Identifier: MIT */
/*
 * Memory that is a pin of the kernel module.
 *
 * NVIDIA's gdrdrv maps a pin once, as a whole: every mapping is a part of that one. A pin of this
 * project's module can be mapped through its share descriptor, as often as one likes and in any
 * part, so that is done where parts are wanted; whole GPU pages do without the descriptor.
 */
#ifndef GDRPY_MEMORY_PIN_H
#define GDRPY_MEMORY_PIN_H

#include "backends/node.h"
#include "memory/private.h"

/* What is to be pinned; gpu_pages: the memory is whole GPU pages around the range. */
struct gdr_pin_request {
	uint64_t ptr, nbytes;
	uint32_t flags; /* GDRDRV_PIN_V3_... */
	bool gpu_pages;
	bool persistent; /* what the pin will be */
};

/* Pin by a node that outlives the memory. NULL with *error filled in. */
struct gdr_memory *gdr_pin(const struct gdr_node *node, const struct gdr_pin_request *request,
			   struct gdr_error *error);

#endif
