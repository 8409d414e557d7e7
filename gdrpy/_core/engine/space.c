/* SPDX-License-Identifier: MIT */
/* Objects in a link's client, and memory in its address space. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "common/forks.h"
#include "engine/private.h"

/* Of most CPUs. They are faster to register, and to copy to and from. */
#define HUGE_PAGE ((size_t)2 << 20)

int core_link_alloc(struct core_link *link, const char *call, uint32_t parent, uint32_t class_id,
		    void *params, uint32_t *handle, struct core_error *error)
{
	int ret;

	pthread_mutex_lock(&link->client->lock);
	ret = core_rm_alloc(link->client, call, parent, class_id, params, 0, handle, error);
	pthread_mutex_unlock(&link->client->lock);
	return ret;
}

/* Whether the driver knows the call only with the older structure, which begins like the newer. */
static bool is_older(const struct core_error *error)
{
	return error->number == EINVAL && !error->status;
}

int core_link_map(struct core_link *link, uint32_t object, uint64_t nbytes, uint32_t flags,
		  uint64_t *va, struct core_error *error)
{
	struct nvrm_map_dma map = {
		.client = link->client->handle,
		.device = link->device->handle,
		.virtual_memory = link->virtual_memory,
		.memory = object,
		.length = nbytes,
		.flags = flags,
	};
	struct nvrm_map_dma_old old = {0};

	if (!__atomic_load_n(&link->old_map, __ATOMIC_RELAXED)) {
		if (!core_rm_call(link->client, "RM_MAP_MEMORY_DMA", NVRM_IOCTL_MAP_DMA, &map,
				  &map.status, error)) {
			*va = map.va;
			return 0;
		}
		if (!is_older(error))
			return -1;
		__atomic_store_n(&link->old_map, true, __ATOMIC_RELAXED);
	}
	memcpy(&old, &map, offsetof(struct nvrm_map_dma, flags2));
	if (core_rm_call(link->client, "RM_MAP_MEMORY_DMA", NVRM_IOCTL_MAP_DMA_OLD, &old,
			 &old.status, error))
		return -1;
	*va = old.va;
	return 0;
}

int core_link_unmap(struct core_link *link, uint32_t object, uint64_t va, struct core_error *error)
{
	struct nvrm_unmap_dma unmap = {
		.client = link->client->handle,
		.device = link->device->handle,
		.virtual_memory = link->virtual_memory,
		.memory = object,
		.va = va,
	};
	struct nvrm_unmap_dma_old old = {0};

	if (!__atomic_load_n(&link->old_unmap, __ATOMIC_RELAXED)) {
		if (!core_rm_call(link->client, "RM_UNMAP_MEMORY_DMA", NVRM_IOCTL_UNMAP_DMA, &unmap,
				  &unmap.status, error))
			return 0;
		if (!is_older(error))
			return -1;
		__atomic_store_n(&link->old_unmap, true, __ATOMIC_RELAXED);
	}
	memcpy(&old, &unmap, offsetof(struct nvrm_unmap_dma, size));
	return core_rm_call(link->client, "RM_UNMAP_MEMORY_DMA", NVRM_IOCTL_UNMAP_DMA_OLD, &old,
			    &old.status, error);
}

int core_link_register(struct core_link *link, char *host, uint64_t nbytes, bool readonly,
		       struct core_span *span, struct core_error *error)
{
	struct nvrm_host_memory memory = {
		.root = link->client->handle,
		.parent = link->device->handle,
		.object = core_rm_new_handle(link->client),
		.class_id = NVRM_CLASS_HOST_MEMORY,
		.flags = NVRM_HOST_MEMORY | (readonly ? NVRM_HOST_MEMORY_READONLY : 0),
		.address = (uintptr_t)host,
		.limit = nbytes - 1,
		.fd = -1,
	};
	uint32_t flags = NVRM_DMA_SNOOPED | (readonly ? NVRM_DMA_READONLY : 0);
	struct core_error ignored;
	uint64_t va;

	if (core_rm_call_on(link->device->node, "RM_ALLOC_MEMORY", NVRM_IOCTL_HOST_MEMORY, &memory,
			    &memory.status, error))
		return -1;
	if (core_link_map(link, memory.object, nbytes, flags, &va, error)) {
		core_rm_free(link->client, link->device->handle, memory.object, &ignored);
		return -1;
	}
	*span = (struct core_span){.object = memory.object, .va = va, .host = host};
	return 0;
}

void core_link_unregister(struct core_link *link, const struct core_span *span)
{
	struct core_error ignored;

	core_link_unmap(link, span->object, span->va, &ignored);
	core_rm_free(link->client, link->device->handle, span->object, &ignored);
}

/* Map memory at a multiple of its alignment; MAP_FAILED if there is none. */
static char *map_aligned(size_t nbytes, size_t alignment)
{
	char *base = mmap(NULL, nbytes + alignment, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t before;

	if (base == MAP_FAILED)
		return base;
	before = -(uintptr_t)base % alignment;
	if (before)
		munmap(base, before);
	munmap(base + before + nbytes, alignment - before);
	return base + before;
}

char *core_link_host(size_t nbytes, struct core_error *error)
{
	const bool huge = nbytes % HUGE_PAGE == 0;
	char *host;

	core_forks_hold();
	host = map_aligned(nbytes, huge ? HUGE_PAGE : core_page_nbytes());
	if (host != MAP_FAILED && madvise(host, nbytes, MADV_DONTFORK)) {
		munmap(host, nbytes);
		host = MAP_FAILED;
	}
	core_forks_let_go();
	if (host == MAP_FAILED)
		return core_fail_call_null(error, ENOMEM, 0, "mmap (%zu bytes for the copy engine)",
					   nbytes);
	if (huge)
		(void)madvise(host, nbytes, MADV_HUGEPAGE);
	return host;
}
