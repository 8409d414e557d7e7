/* SPDX-License-Identifier: MIT */
/*
 * CPU mappings of GPU memory on the stock NVIDIA driver: no kernel module, no root, no CUDA.
 *
 * A client belongs to the process that opened it (a forked child must open its own) and serves all
 * its threads. Memory is taken into the client from an exported allocation's descriptor, or from
 * the legacy IPC handle of a cuMemAlloc pointer, and mapped by byte ranges. It stays alive until it
 * is released, even if its first owner frees it.
 */
#ifndef GDRPY_RM_CLIENT_H
#define GDRPY_RM_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"
#include "cuda/ipc.h"
#include "memory/map.h"

/* A condition that the driver reports and that prevents CPU mappings, and its remedy. */
struct core_rm_obstacle {
	const char *reason;
	const char *remedy;
};

/* A GPU's identity outside RM. */
struct core_rm_gpu {
	uint32_t pci_domain;
	uint8_t pci_bus;
	uint8_t pci_slot;
	uint32_t minor; /* of /dev/nvidia<minor> */
};

struct core_rm_memory {
	struct core_rm_gpu gpu;
	uint64_t nbytes; /* of the whole physical block */
	uint32_t device; /* handles in the client */
	uint32_t object;
};

struct core_rm_mapping {
	struct core_map map;
	uint32_t device;
	uint32_t object;
	uint64_t linear;
};

struct core_rm;

/*
 * Unless noted, these return 0, or -1 with *error filled in and nothing left behind:
 * CORE_FAILED_UNAVAILABLE if an obstacle is the cause.
 */
int core_rm_open(struct core_rm **client, struct core_error *error);

/* The reason why core_rm_open() failed with an errno, and its remedy; NULL if unknown. */
const struct core_rm_obstacle *core_rm_open_obstacle(int error);
/* Say so in *error. Returns -1. */
int core_rm_explain_open(struct core_error *error);

/*
 * The obstacle to every mapping of a GPU's memory (gpu NULL: of any GPU's), found without trying
 * one; NULL if none is known.
 */
const struct core_rm_obstacle *core_rm_find_obstacle(struct core_rm *client,
						     const struct core_rm_gpu *gpu);

/* The client's handle, by which another client of this process may name its objects. */
uint32_t core_rm_handle(const struct core_rm *client);

/* The GPU that holds exported memory. */
int core_rm_export_gpu(struct core_rm *client, int fd, struct core_rm_gpu *gpu,
		       struct core_error *error);

/* Whether a GPU is split into MIG instances. */
bool core_rm_split(struct core_rm *client, const struct core_rm_gpu *gpu);

/*
 * Take in memory from an export (CORE_FAILED_HANDLE for another descriptor) or from an IPC handle.
 * For a handle, `sibling` is any export of the same MIG instance if the GPU is split, else -1.
 */
int core_rm_import(struct core_rm *client, int fd, struct core_rm_memory *memory,
		   struct core_error *error);
int core_rm_duplicate(struct core_rm *client, const struct core_rm_gpu *gpu, int sibling,
		      const struct core_ipc_info *source, struct core_rm_memory *memory,
		      struct core_error *error);
int core_rm_release(struct core_rm *client, const struct core_rm_memory *memory,
		    struct core_error *error);
int core_rm_map(struct core_rm *client, const struct core_rm_memory *memory, uint64_t offset,
		size_t nbytes, bool readonly, void *at, struct core_rm_mapping *mapping,
		struct core_error *error); /* at: as in core_map_fd() */
int core_rm_unmap(struct core_rm *client, struct core_rm_mapping *mapping,
		  struct core_error *error);

/* Frees the client's RM objects and closes its descriptor. Unmap everything first. */
void core_rm_close(struct core_rm *client);

/* In a forked child, drop the parent's client without touching its RM objects. */
void core_rm_abandon(struct core_rm *client);

#endif
