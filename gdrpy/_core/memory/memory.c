/* SPDX-License-Identifier: MIT */
#include "memory/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backends/backends.h"
#include "memory/private.h"

struct gdr_memory *gdr_memory_new(const struct gdr_backend *backend,
				  const struct gdr_memory_functions *functions, size_t size,
				  struct gdr_error *error)
{
	struct gdr_memory *memory = calloc(1, size);

	if (!memory) {
		gdr_fail(error, GDR_FAILED_MEMORY, ENOMEM, "this process has no memory left");
		return NULL;
	}
	memory->backend = backend;
	memory->functions = functions;
	memory->page_size = (uint32_t)sysconf(_SC_PAGESIZE);
	memory->device = -1;
	memory->persistent = true;
	return memory;
}

int gdr_memory_add(struct gdr_memory *memory, const struct gdr_part *part, struct gdr_error *error)
{
	struct gdr_part *parts =
		reallocarray(memory->parts, memory->nparts + 1, sizeof(memory->parts[0]));

	if (!parts)
		return gdr_fail(error, GDR_FAILED_MEMORY, ENOMEM,
				"this process has no memory left");
	parts[memory->nparts++] = *part;
	memory->parts = parts;
	memory->nbytes += part->nbytes;
	return 0;
}

/* The part that a byte lies in; *offset becomes its offset there. */
static const struct gdr_part *part_at(const struct gdr_memory *memory, uint64_t *offset)
{
	const struct gdr_part *part = memory->parts;

	while (*offset >= part->nbytes)
		*offset -= part++->nbytes;
	return part;
}

int gdr_memory_unmap(struct gdr_memory *memory, struct gdr_view *view, struct gdr_error *error)
{
	struct gdr_error ignored;
	int ret = 0;

	while (view->npieces)
		if (memory->functions->unmap(memory, &view->pieces[--view->npieces],
					     ret ? &ignored : error))
			ret = -1;
	free(view->pieces);
	view->pieces = NULL;
	return ret;
}

/* What of a range beginning at an offset of a part lies in that part. */
static size_t stretch(const struct gdr_part *part, uint64_t offset, size_t nbytes)
{
	return nbytes < part->nbytes - offset ? nbytes : (size_t)(part->nbytes - offset);
}

/* Map what lies in one part, and go on over address space that is kept free where there is more. */
static int map_pieces(struct gdr_memory *memory, uint64_t offset, size_t nbytes, bool readonly,
		      struct gdr_view *view, struct gdr_error *error)
{
	const struct gdr_part *part = part_at(memory, &offset);
	bool several = nbytes > part->nbytes - offset;
	size_t done = 0;

	if (several) {
		gdr_map_pages(&view->map, part->offset + offset, nbytes);
		if (gdr_map_reserve(&view->map, part->offset + offset))
			return gdr_fail_call(error, ENOMEM, 0, "mapping %zu bytes", nbytes);
	}
	while (done < nbytes) {
		size_t here = stretch(part, offset, nbytes - done);
		struct gdr_piece *piece = &view->pieces[view->npieces];
		void *at = several ? view->map.base : NULL;

		if (done)
			at = (char *)view->map.address + done;
		piece->part = part;
		if (memory->functions->map(memory, part, offset, here, readonly, at, piece,
					   &view->kind, error)) {
			/* First what nobody else can have taken meanwhile. */
			if (several)
				munmap(at, (size_t)((char *)view->map.base + view->map.length -
						    (char *)at));
			return -1;
		}
		view->npieces++;
		done += here;
		offset = 0;
		part++;
	}
	if (!several)
		view->map = view->pieces[0].map;
	return 0;
}

int gdr_memory_map(struct gdr_memory *memory, uint64_t offset, size_t nbytes, bool readonly,
		   struct gdr_view *view, struct gdr_error *error)
{
	struct gdr_error ignored;

	*view = (struct gdr_view){.kind = memory->kind};
	view->pieces = calloc(memory->nparts, sizeof(view->pieces[0]));
	if (!view->pieces)
		return gdr_fail(error, GDR_FAILED_MEMORY, ENOMEM,
				"this process has no memory left");
	if (map_pieces(memory, offset, nbytes, readonly, view, error)) {
		gdr_memory_unmap(memory, view, &ignored);
		return -1;
	}
	return 0;
}

int gdr_memory_want(struct gdr_memory *memory, enum gdr_mapping_kind kind, struct gdr_error *error)
{
	if (memory->functions->want)
		return memory->functions->want(memory, kind, error);
	if (kind == GDR_MAPPING_NONE || kind == memory->kind)
		return 0;
	return gdr_fail(error, GDR_FAILED_UNAVAILABLE, EINVAL,
			"%s maps this memory in one way only, and not as type %d: ask for no type",
			memory->backend->name, (int)kind);
}

bool gdr_memory_revoked(struct gdr_memory *memory)
{
	return memory->functions->revoked && memory->functions->revoked(memory);
}

int gdr_memory_share(struct gdr_memory *memory, bool readonly, struct gdr_error *error)
{
	if (memory->functions->share)
		return memory->functions->share(memory, readonly, error);
	return gdr_fail(error, GDR_FAILED_UNAVAILABLE, EOPNOTSUPP,
			"%s cannot share a pin of its own: load gdrpy's kernel module, or "
			"share memory of gdrpy.alloc() by Region.export()",
			memory->backend->name);
}

int gdr_memory_release(struct gdr_memory *memory, struct gdr_error *error)
{
	int ret = memory->functions->release(memory, error);

	gdr_memory_free(memory);
	return ret;
}

void gdr_memory_forget(struct gdr_memory *memory)
{
	gdr_memory_free(memory);
}

void gdr_memory_free(struct gdr_memory *memory)
{
	free(memory->parts);
	free(memory);
}

struct gdr_memory *gdr_memory_undo(struct gdr_memory *memory)
{
	struct gdr_error ignored;

	gdr_memory_release(memory, &ignored);
	return NULL;
}
