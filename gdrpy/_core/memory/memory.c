/* SPDX-License-Identifier: MIT */
#include "memory/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backends/backends.h"
#include "memory/private.h"

struct core_memory *core_memory_new(const struct core_backend *backend,
				    const struct core_memory_functions *functions, size_t size,
				    struct core_error *error)
{
	struct core_memory *memory = calloc(1, size);

	if (!memory)
		return core_fail_malloc_null(error);
	memory->backend = backend;
	memory->functions = functions;
	memory->page_size = (uint32_t)sysconf(_SC_PAGESIZE);
	memory->device = -1;
	memory->persistent = true;
	return memory;
}

int core_memory_add(struct core_memory *memory, const struct core_part *part,
		    struct core_error *error)
{
	struct core_part *parts =
		reallocarray(memory->parts, memory->nparts + 1, sizeof(memory->parts[0]));

	if (!parts)
		return core_fail_malloc(error);
	parts[memory->nparts++] = *part;
	memory->parts = parts;
	memory->nbytes += part->nbytes;
	return 0;
}

/* The part that holds a byte; *offset becomes the offset within it. */
static const struct core_part *part_at(const struct core_memory *memory, uint64_t *offset)
{
	const struct core_part *part = memory->parts;

	while (*offset >= part->nbytes)
		*offset -= part++->nbytes;
	return part;
}

int core_memory_unmap(struct core_memory *memory, struct core_view *view, struct core_error *error)
{
	struct core_error ignored;
	int ret = 0;

	while (view->nstretches)
		if (memory->functions->unmap(memory, &view->stretches[--view->nstretches],
					     ret ? &ignored : error))
			ret = -1;
	free(view->stretches);
	view->stretches = NULL;
	return ret;
}

/* How many bytes of a range that begins at an offset of a part lie in that part. */
static size_t nbytes_in(const struct core_part *part, uint64_t offset, size_t nbytes)
{
	return nbytes < part->nbytes - offset ? nbytes : (size_t)(part->nbytes - offset);
}

/* Map a range part by part. If it covers several parts, reserve its address space first. */
static int map_stretches(struct core_memory *memory, uint64_t offset, size_t nbytes, bool readonly,
			 struct core_view *view, struct core_error *error)
{
	const struct core_part *part = part_at(memory, &offset);
	bool several = nbytes > part->nbytes - offset;
	size_t done = 0;

	if (several) {
		core_map_pages(&view->map, part->offset + offset, nbytes);
		if (core_map_reserve(&view->map, part->offset + offset))
			return core_fail_call(error, ENOMEM, 0, "mapping %zu bytes", nbytes);
	}
	while (done < nbytes) {
		struct core_stretch *stretch = &view->stretches[view->nstretches];
		char *at = several ? (char *)view->map.base : NULL;

		if (done)
			at = (char *)view->map.address + done;
		*stretch = (struct core_stretch){
			.part = part,
			.offset = offset,
			.nbytes = nbytes_in(part, offset, nbytes - done),
			.at = at,
		};
		if (memory->functions->map(memory, stretch, readonly, &view->kind, error)) {
			/* Release the rest of the reservation. */
			if (several)
				munmap(at,
				       (size_t)((char *)view->map.base + view->map.length - at));
			return -1;
		}
		view->nstretches++;
		done += stretch->nbytes;
		offset = 0;
		part++;
	}
	if (!several)
		view->map = view->stretches[0].map;
	return 0;
}

int core_memory_map(struct core_memory *memory, uint64_t offset, size_t nbytes, bool readonly,
		    struct core_view *view, struct core_error *error)
{
	struct core_error ignored;

	*view = (struct core_view){.kind = memory->kind};
	view->stretches = calloc(memory->nparts, sizeof(view->stretches[0]));
	if (!view->stretches)
		return core_fail_malloc(error);
	if (map_stretches(memory, offset, nbytes, readonly, view, error)) {
		core_memory_unmap(memory, view, &ignored);
		return -1;
	}
	return 0;
}

int core_memory_want(struct core_memory *memory, enum core_mapping_kind kind,
		     struct core_error *error)
{
	if (memory->functions->want)
		return memory->functions->want(memory, kind, error);
	if (kind == CORE_MAPPING_NONE || kind == memory->kind)
		return 0;
	return core_fail(error, CORE_FAILED_UNAVAILABLE, EINVAL,
			 "%s cannot map this memory as type %d: do not request a type",
			 memory->backend->name, (int)kind);
}

bool core_memory_revoked(struct core_memory *memory)
{
	return memory->functions->revoked && memory->functions->revoked(memory);
}

int core_memory_share(struct core_memory *memory, bool readonly, struct core_error *error)
{
	if (memory->functions->share)
		return memory->functions->share(memory, readonly, error);
	return core_fail(error, CORE_FAILED_UNAVAILABLE, EOPNOTSUPP,
			 "%s cannot share a pin: load gdrpy's kernel module, or "
			 "share memory of gdrpy.alloc() with Region.export()",
			 memory->backend->name);
}

int core_memory_release(struct core_memory *memory, struct core_error *error)
{
	int ret = memory->functions->release(memory, error);

	core_memory_forget(memory);
	return ret;
}

void core_memory_forget(struct core_memory *memory)
{
	free(memory->parts);
	free(memory);
}

struct core_memory *core_memory_undo(struct core_memory *memory)
{
	struct core_error ignored;

	core_memory_release(memory, &ignored);
	return NULL;
}
