/* SPDX-License-Identifier: MIT */
/*
 * CPU mappings of GPU memory on the stock NVIDIA driver: no kernel module, no root, no CUDA.
 *
 * A client belongs to the process that opened it (a forked child must open its own) and serves all
 * its threads. Memory is taken into the client from an exported allocation's descriptor, or from
 * the legacy IPC handle of a cuMemAlloc pointer, and mapped by byte ranges. What was taken in stays
 * alive, whatever its first owner does, until it is released.
 */
#ifndef GDRPY_NVRM_H
#define GDRPY_NVRM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"
#include "cuda/ipc.h"
#include "memory/map.h"

/* What the driver says of itself that keeps the CPU from GPU memory, and what would change it. */
struct gdr_nvrm_obstacle {
	const char *reason;
	const char *remedy;
};

/* How a GPU is known outside RM. */
struct gdr_nvrm_gpu {
	uint32_t pci_domain;
	uint8_t pci_bus;
	uint8_t pci_slot;
	uint32_t minor; /* of /dev/nvidia<minor> */
};

struct gdr_nvrm_memory {
	struct gdr_nvrm_gpu gpu;
	uint64_t nbytes; /* of the whole physical block */
	uint32_t device; /* handles in the client */
	uint32_t object;
};

struct gdr_nvrm_mapping {
	struct gdr_map map;
	uint32_t device;
	uint32_t object;
	uint64_t linear;
};

struct gdr_nvrm;

/*
 * All of these return 0, or -1 with *error filled in and nothing left behind:
 * GDR_FAILED_UNAVAILABLE if an obstacle explains it.
 */
int gdr_nvrm_open(struct gdr_nvrm **client, struct gdr_error *error);

/*
 * Why every mapping of a GPU's memory (NULL: of any GPU's) is sure to fail, before any is tried;
 * NULL if nothing is known to speak against it.
 */
const struct gdr_nvrm_obstacle *gdr_nvrm_find_obstacle(struct gdr_nvrm *client,
						       const struct gdr_nvrm_gpu *gpu);

/* Whether a GPU is split into MIG instances. */
bool gdr_nvrm_split(struct gdr_nvrm *client, const struct gdr_nvrm_gpu *gpu);

/*
 * Memory is taken in from an export; or from an IPC handle, and then `sibling` is any export of the
 * same MIG instance where the GPU is split, else -1.
 */
int gdr_nvrm_import(struct gdr_nvrm *client, int fd, struct gdr_nvrm_memory *memory,
		    struct gdr_error *error);
int gdr_nvrm_duplicate(struct gdr_nvrm *client, const struct gdr_nvrm_gpu *gpu, int sibling,
		       const struct gdr_ipc_info *source, struct gdr_nvrm_memory *memory,
		       struct gdr_error *error);
int gdr_nvrm_release(struct gdr_nvrm *client, const struct gdr_nvrm_memory *memory,
		     struct gdr_error *error);
int gdr_nvrm_map(struct gdr_nvrm *client, const struct gdr_nvrm_memory *memory, uint64_t offset,
		 size_t nbytes, bool readonly, void *at, struct gdr_nvrm_mapping *mapping,
		 struct gdr_error *error); /* at: as in gdr_map_fd() */
int gdr_nvrm_unmap(struct gdr_nvrm *client, struct gdr_nvrm_mapping *mapping,
		   struct gdr_error *error);

/* Frees the client's RM objects and closes its descriptor. Unmap everything first. */
void gdr_nvrm_close(struct gdr_nvrm *client);

/* In a forked child: drop the parent's client without touching what is the parent's in RM. */
void gdr_nvrm_abandon(struct gdr_nvrm *client);

#endif
