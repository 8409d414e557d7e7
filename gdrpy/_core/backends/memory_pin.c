/* SPDX-License-Identifier: MIT */
#include "backends/memory_pin.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backends/backends.h"
#include "backends/memory_share.h"
#include "common/forks.h"

struct pin {
	struct gdr_memory memory;
	const struct gdr_node *node;

	/* Of a pin that is mapped as a whole. */
	pthread_mutex_t lock;
	struct gdr_map whole;
	unsigned int users;
};

static struct pin *pin_of(struct gdr_memory *memory)
{
	return (struct pin *)memory;
}

/* Closing the node has ended its pins. */
static int unpin(const struct gdr_node *node, uint64_t handle, struct gdr_error *error)
{
	int ret = node->fd >= 0 ? gdr_node_unpin(node, handle) : 0;

	return ret ? gdr_fail_call(error, -ret, 0, "unpinning handle %llu",
				   (unsigned long long)handle)
		   : 0;
}

static bool pin_revoked(struct gdr_memory *memory)
{
	struct gdr_pin_info info;
	struct pin *pin = pin_of(memory);

	return !memory->persistent && pin->node->fd >= 0 &&
	       !gdr_node_info(pin->node, memory->handle, &info) && info.revoked;
}

/* How the pin is mapped now; GDR_FAILED_REVOKED if it is not. */
static int find_kind(struct gdr_memory *memory, enum gdr_mapping_kind *kind,
		     struct gdr_error *error)
{
	struct gdr_pin_info info;
	int ret = gdr_node_info(pin_of(memory)->node, memory->handle, &info);

	if (ret)
		return gdr_fail_call(error, -ret, 0, "asking about handle %llu",
				     (unsigned long long)memory->handle);
	*kind = (enum gdr_mapping_kind)info.mapping_type;
	return *kind == GDR_MAPPING_NONE ? gdr_fail_revoked(error) : 0;
}

static int map_pin(struct gdr_memory *memory, const struct gdr_part *part, uint64_t offset,
		   size_t nbytes, bool readonly, void *at, struct gdr_piece *piece,
		   enum gdr_mapping_kind *kind, struct gdr_error *error)
{
	struct gdr_error ignored;

	if (gdr_share_map(memory, part, offset, nbytes, readonly, at, piece, kind, error))
		return -1;
	if (find_kind(memory, kind, error)) {
		gdr_fd_unmap(memory, piece, &ignored);
		return -1;
	}
	return 0;
}

static int unmap_part_of_whole(struct gdr_memory *memory, struct gdr_piece *piece,
			       struct gdr_error *error)
{
	struct pin *pin = pin_of(memory);
	int ret = 0;

	(void)piece;
	pthread_mutex_lock(&pin->lock);
	if (!--pin->users)
		ret = gdr_map_undo(&pin->whole);
	pthread_mutex_unlock(&pin->lock);
	return ret ? gdr_fail_call(error, -ret, 0, "munmap") : 0;
}

/* Called with the lock held. */
static int map_whole(struct pin *pin, uint64_t nbytes, struct gdr_error *error)
{
	uint64_t at = pin->memory.handle * (uint64_t)sysconf(_SC_PAGESIZE);
	int ret;

	gdr_map_pages(&pin->whole, 0, nbytes);
	ret = gdr_map_fd(&pin->whole, pin->node->fd, at, 0, false, NULL);
	if (!ret)
		return 0;
	if (ret == -EINVAL && pin_revoked(&pin->memory))
		return gdr_fail_revoked(error);
	return gdr_fail_call(error, -ret, 0, "mapping the %llu bytes of handle %llu: mmap",
			     (unsigned long long)nbytes, (unsigned long long)pin->memory.handle);
}

/* Reading only is kept by the caller alone: the pages are those of the other mappings. */
static int map_part_of_whole(struct gdr_memory *memory, const struct gdr_part *part,
			     uint64_t offset, size_t nbytes, bool readonly, void *at,
			     struct gdr_piece *piece, enum gdr_mapping_kind *kind,
			     struct gdr_error *error)
{
	struct pin *pin = pin_of(memory);
	struct gdr_error ignored;
	int ret = 0;

	(void)readonly;
	(void)at;
	pthread_mutex_lock(&pin->lock);
	if (!pin->users)
		ret = map_whole(pin, part->offset + part->nbytes, error);
	if (!ret)
		pin->users++;
	pthread_mutex_unlock(&pin->lock);
	if (ret)
		return -1;

	piece->map = (struct gdr_map){.address = (char *)pin->whole.address + part->offset + offset,
				      .nbytes = nbytes};
	if (find_kind(memory, kind, error)) {
		unmap_part_of_whole(memory, piece, &ignored);
		return -1;
	}
	return 0;
}

static int want(struct gdr_memory *memory, enum gdr_mapping_kind kind, struct gdr_error *error)
{
	int ret = gdr_node_request_type(pin_of(memory)->node, memory->handle, kind);

	if (!ret)
		return 0;
	return gdr_fail(error, GDR_FAILED_UNAVAILABLE, -ret,
			"the kernel module does not map handle %llu as type %d: %s: ask for no "
			"type",
			(unsigned long long)memory->handle, (int)kind, strerror(-ret));
}

static int share(struct gdr_memory *memory, bool readonly, struct gdr_error *error)
{
	int fd;

	if (pin_revoked(memory))
		return gdr_fail_revoked(error);
	fd = gdr_node_share(pin_of(memory)->node, memory->handle, readonly);
	return fd >= 0 ? fd
		       : gdr_fail_call(error, -fd, 0, "sharing handle %llu",
				       (unsigned long long)memory->handle);
}

static int release_pin(struct gdr_memory *memory, struct gdr_error *error)
{
	struct pin *pin = pin_of(memory);

	gdr_fd_release(memory, error);
	pthread_mutex_destroy(&pin->lock);
	return unpin(pin->node, memory->handle, error);
}

static const struct gdr_memory_functions pin_functions = {
	.map = map_pin,
	.unmap = gdr_fd_unmap,
	.release = release_pin,
	.want = want,
	.revoked = pin_revoked,
	.share = share,
};

static const struct gdr_memory_functions whole_pin_functions = {
	.map = map_part_of_whole,
	.unmap = unmap_part_of_whole,
	.release = release_pin,
	.want = want,
	.revoked = pin_revoked,
};

static int fail_pin(struct gdr_error *error, int number, const struct gdr_pin_request *request)
{
	char what[96];

	snprintf(what, sizeof(what), "pinning %llu bytes at %#llx by " GDRDRV_NODE,
		 (unsigned long long)request->nbytes, (unsigned long long)request->ptr);
	switch (number) {
	case EINVAL:
		return gdr_fail(error, GDR_FAILED_HANDLE, number,
				"%s: the NVIDIA driver finds no GPU memory of this process there: "
				"pass a pointer from cuMemAlloc, cudaMalloc or gdrpy.alloc of this "
				"process",
				what);
	case EDQUOT:
		return gdr_fail(error, GDR_FAILED_MEMORY, number,
				"%s: more than a user may have pinned: close pins, or have the "
				"administrator raise the module's max_pinned_mib",
				what);
	case EOPNOTSUPP:
		return gdr_fail(error, GDR_FAILED_UNAVAILABLE, number,
				"%s: the module or the NVIDIA driver does not support it", what);
	default:
		return gdr_fail_call(error, number, 0, "%s", what);
	}
}

/* The part of a new pin, whose handle the memory has: of its share, or of it as a whole. */
static int add_pages(struct pin *pin, const struct gdr_pin_request *request, bool shared,
		     struct gdr_error *error)
{
	struct gdr_memory *memory = &pin->memory;
	struct gdr_part part = {.fd = -1};
	struct gdr_pin_info info;
	int ret = gdr_node_info(pin->node, memory->handle, &info);

	if (ret)
		return gdr_fail_call(error, -ret, 0, "asking about handle %llu",
				     (unsigned long long)memory->handle);
	memory->pin_cycles = info.cycles;
	memory->cycles_per_ms = info.khz;
	memory->va = request->gpu_pages ? info.va : request->ptr;
	part.offset = memory->va - info.va;
	part.nbytes = request->gpu_pages ? info.nbytes : request->nbytes;
	if (shared) {
		gdr_forks_hold();
		ret = gdr_node_share(pin->node, memory->handle, false);
		part.fd = gdr_private_note(ret);
		gdr_forks_let_go();
		if (part.fd < 0)
			return gdr_fail_call(error, ret < 0 ? -ret : ENOMEM, 0,
					     "sharing handle %llu",
					     (unsigned long long)memory->handle);
	}
	if (!gdr_memory_add(memory, &part, error))
		return 0;
	if (part.fd >= 0)
		gdr_private_close(part.fd);
	return -1;
}

struct gdr_memory *gdr_pin(const struct gdr_node *node, const struct gdr_pin_request *request,
			   struct gdr_error *error)
{
	bool shared = gdr_node_full(node) && !request->gpu_pages;
	/* As a whole is mapped only what begins with a GPU page. */
	uint64_t start =
		shared ? request->ptr : request->ptr / GDRDRV_GPU_PAGE_SIZE * GDRDRV_GPU_PAGE_SIZE;
	struct gdr_memory *memory =
		gdr_memory_new(&gdr_backend_gdrdrv, shared ? &pin_functions : &whole_pin_functions,
			       sizeof(struct pin), error);
	int ret;

	if (!memory)
		return NULL;
	pin_of(memory)->node = node;
	pthread_mutex_init(&pin_of(memory)->lock, NULL);
	memory->page_size = GDRDRV_GPU_PAGE_SIZE;
	memory->persistent = request->persistent;
	ret = gdr_node_pin(node, start, request->ptr + request->nbytes - start, request->flags,
			   &memory->handle);
	if (ret) {
		fail_pin(error, -ret, request);
		gdr_memory_free(memory);
		return NULL;
	}
	return add_pages(pin_of(memory), request, shared, error) ? gdr_memory_undo(memory) : memory;
}
