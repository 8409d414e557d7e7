/* SPDX-License-Identifier: MIT */
#include "backends/memory_nvrm.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>

#include "backends/backends.h"

static pthread_mutex_t client_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gdr_nvrm *client;

/* A fork while it is opened would leave the child a descriptor that keeps it: forks wait. */
static void lock_client(void)
{
	pthread_mutex_lock(&client_lock);
}

static void unlock_client(void)
{
	pthread_mutex_unlock(&client_lock);
}

/* RM ties a client to the process that opened it. */
static void forget_in_child(void)
{
	if (client)
		gdr_nvrm_abandon(client);
	client = NULL;
	unlock_client();
}

static void __attribute__((constructor)) watch_forks(void)
{
	pthread_atfork(lock_client, unlock_client, forget_in_child);
}

static int failed(struct gdr_error *error, const struct gdr_nvrm_error *cause, const char *purpose)
{
	if (cause->obstacle)
		return gdr_fail(error, GDR_FAILED_UNAVAILABLE, ENODEV, "%s: %s (%s)", cause->call,
				cause->obstacle->reason, cause->obstacle->remedy);
	return gdr_fail_call(error, cause->error, cause->status, "%s: %s", purpose, cause->call);
}

int gdr_nvrm_ready(struct gdr_nvrm_error *cause)
{
	int ret = 0;

	pthread_mutex_lock(&client_lock);
	if (!client)
		ret = gdr_nvrm_open(&client, cause);
	pthread_mutex_unlock(&client_lock);
	return ret;
}

static int open_client(struct gdr_error *error)
{
	struct gdr_nvrm_error cause;
	int ret = gdr_nvrm_ready(&cause);

	if (ret && cause.error == ENOENT)
		return gdr_fail(error, GDR_FAILED_UNAVAILABLE, ENODEV,
				"cannot use the NVIDIA driver: %s: it is not there: install the "
				"driver, or pass the node into the container (--gpus, --device)",
				cause.call);
	return ret ? failed(error, &cause, "cannot use the NVIDIA driver") : 0;
}

static struct gdr_nvrm_gpu gpu_at(const int pci[3])
{
	return (struct gdr_nvrm_gpu){
		.pci_domain = (uint32_t)pci[0],
		.pci_bus = (uint8_t)pci[1],
		.pci_slot = (uint8_t)pci[2],
	};
}

const struct gdr_nvrm_obstacle *gdr_nvrm_obstacle_at(const int pci[3])
{
	struct gdr_nvrm_gpu gpu;

	if (!pci)
		return gdr_nvrm_find_obstacle(client, NULL);
	gpu = gpu_at(pci);
	return gdr_nvrm_find_obstacle(client, &gpu);
}

bool gdr_nvrm_split_at(const int pci[3])
{
	const struct gdr_nvrm_gpu gpu = gpu_at(pci);

	return gdr_nvrm_split(client, &gpu);
}

static int map_block(struct gdr_memory *memory, const struct gdr_part *part, uint64_t offset,
		     size_t nbytes, bool readonly, void *at, struct gdr_piece *piece,
		     enum gdr_mapping_kind *kind, struct gdr_error *error)
{
	struct gdr_nvrm_mapping mapping;
	struct gdr_nvrm_error cause;
	char purpose[80];

	(void)memory;
	(void)kind;
	if (gdr_nvrm_map(client, &part->block, part->offset + offset, nbytes, readonly, at,
			 &mapping, &cause)) {
		snprintf(purpose, sizeof(purpose), "mapping %zu bytes at offset %llu", nbytes,
			 (unsigned long long)offset);
		return failed(error, &cause, purpose);
	}
	piece->map = mapping.map;
	piece->token = mapping.linear;
	return 0;
}

static int unmap_block(struct gdr_memory *memory, struct gdr_piece *piece, struct gdr_error *error)
{
	struct gdr_nvrm_mapping mapping = {
		.map = piece->map,
		.device = piece->part->block.device,
		.object = piece->part->block.object,
		.linear = piece->token,
	};
	struct gdr_nvrm_error cause;

	(void)memory;
	return gdr_nvrm_unmap(client, &mapping, &cause) ? failed(error, &cause, "unmapping") : 0;
}

static int release_blocks(struct gdr_memory *memory, struct gdr_error *error)
{
	struct gdr_nvrm_error cause;
	int ret = 0;

	for (unsigned int i = 0; i < memory->nparts; i++)
		if (gdr_nvrm_release(client, &memory->parts[i].block, &cause))
			ret = failed(error, &cause, "releasing GPU memory");
	return ret;
}

static const struct gdr_memory_functions functions = {
	.map = map_block,
	.unmap = unmap_block,
	.release = release_blocks,
};

struct gdr_memory *gdr_nvrm_memory(uint64_t va, int device, struct gdr_error *error)
{
	struct gdr_memory *memory = NULL;

	if (!open_client(error))
		memory = gdr_memory_new(&gdr_backend_nvrm, &functions, sizeof(*memory), error);
	if (memory) {
		memory->va = va;
		memory->device = device;
		memory->kind = GDR_MAPPING_WC;
	}
	return memory;
}

/* Add a part of a block that RM has just put into the client. */
static int add(struct gdr_memory *memory, const struct gdr_nvrm_memory *block, uint64_t offset,
	       uint64_t nbytes, struct gdr_error *error)
{
	struct gdr_part part = {.nbytes = nbytes, .offset = offset, .fd = -1, .block = *block};
	const struct gdr_nvrm_gpu *gpu = &block->gpu;
	struct gdr_nvrm_error ignored;

	snprintf(memory->location, sizeof(memory->location), "%04x:%02x:%02x.0", gpu->pci_domain,
		 gpu->pci_bus, gpu->pci_slot);
	if (!gdr_memory_add(memory, &part, error))
		return 0;
	gdr_nvrm_release(client, block, &ignored);
	return -1;
}

int gdr_nvrm_add_export(struct gdr_memory *memory, int fd, uint64_t offset, uint64_t nbytes,
			struct gdr_error *error)
{
	struct gdr_nvrm_memory block;
	struct gdr_nvrm_error cause;

	if (gdr_nvrm_import(client, fd, &block, &cause)) {
		failed(error, &cause, "importing the allocation");
		if (cause.error == EINVAL && !cause.obstacle)
			error->failure = GDR_FAILED_HANDLE;
		return -1;
	}
	return add(memory, &block, offset, nbytes ? nbytes : block.nbytes, error);
}

int gdr_nvrm_add_block(struct gdr_memory *memory, const int pci[3], int sibling,
		       const struct gdr_ipc_info *info, uint64_t offset, uint64_t nbytes,
		       struct gdr_error *error)
{
	const struct gdr_nvrm_gpu gpu = gpu_at(pci);
	struct gdr_nvrm_memory block;
	struct gdr_nvrm_error cause;

	if (gdr_nvrm_duplicate(client, &gpu, sibling, info, &block, &cause))
		return failed(error, &cause, "pinning a device pointer");
	if (gdr_ipc_compare(info, block.nbytes, error)) {
		gdr_nvrm_release(client, &block, &cause);
		return -1;
	}
	return add(memory, &block, offset, nbytes, error);
}
