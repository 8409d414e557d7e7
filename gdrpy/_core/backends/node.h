/* SPDX-License-Identifier: MIT */
/*
 * The calls of /dev/gdrdrv, one function each; uapi/gdrdrv.h describes them. The node may belong to
 * NVIDIA's gdrdrv, which has no features, or to this project's module.
 */
#ifndef GDRPY_NODE_H
#define GDRPY_NODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "uapi/gdrdrv.h"

struct core_node {
	int fd;
	uint32_t version;  /* GDRDRV_VERSION(major, minor) of the ABI */
	uint64_t features; /* GDRDRV_FEATURE_...; 0 for NVIDIA's module */
	bool persistent;   /* whether pins outlive a free of the memory by default */
};

/* The GPU pages that a pin holds. */
struct core_pin_info {
	uint64_t va;
	uint64_t nbytes;
	uint32_t mapping_type; /* enum gdrdrv_mapping_type; NONE while nothing is mapped */
	bool revoked;
	uint64_t cycles; /* CPU counter cycles that pinning took, and its kHz */
	uint32_t khz;
};

/* Whether the module is this project's, with all of its features. */
bool core_node_full(const struct core_node *node);

/* Whether GDRDRV_PIN_V3_FORCE_PCIE is supported. */
bool core_node_forces_pcie(const struct core_node *node);

/* The module's origin and versions, in words. */
void core_node_origin(const struct core_node *node, char *words, size_t size);

/* Unless noted, these return 0, or -errno with nothing left behind. */

/* -EPROTO: the module has an incompatible version of the ABI. */
int core_node_open(struct core_node *node, const char *path);
void core_node_close(struct core_node *node);

/* Flags are GDRDRV_PIN_V3_...; -EOPNOTSUPP for those that the node lacks. */
int core_node_pin(const struct core_node *node, uint64_t address, uint64_t nbytes, uint32_t flags,
		  uint64_t *handle);
int core_node_unpin(const struct core_node *node, uint64_t handle);
int core_node_info(const struct core_node *node, uint64_t handle, struct core_pin_info *info);

/* Set the caching of the pin's next mappings: an enum gdrdrv_mapping_type. */
int core_node_request_type(const struct core_node *node, uint64_t handle, uint32_t mapping_type);

/* Returns a close-on-exec descriptor. */
int core_node_share(const struct core_node *node, uint64_t handle, bool readonly);

/* 1 with an event, 0 if none is pending. */
int core_node_next_event(const struct core_node *node, struct gdrdrv_event *event);

/* The size of a share descriptor's pin; -EINVAL for any other descriptor. */
int64_t core_share_size(int fd);

/* Whether the pin of a share descriptor has ended, or ends within timeout_ms. */
bool core_share_ended(int fd, int timeout_ms);

#endif
