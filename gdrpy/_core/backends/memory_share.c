/* SPDX-License-Identifier: MIT */
#include "backends/memory_share.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

#include "backends/backends.h"
#include "backends/node.h"

/* How long at most it takes to take all mappings of a pin away. */
#define END_TAKES_MS 10000

int gdr_fail_revoked(struct gdr_error *error)
{
	return gdr_fail(error, GDR_FAILED_REVOKED, ENXIO,
			"the GPU memory is gone, freed by its owner or with the pin: close what "
			"maps it");
}

static bool is_writable(int fd)
{
	return (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR;
}

int gdr_share_map(struct gdr_memory *memory, const struct gdr_part *part, uint64_t offset,
		  size_t nbytes, bool readonly, void *at, struct gdr_piece *piece,
		  enum gdr_mapping_kind *kind, struct gdr_error *error)
{
	if (!readonly && !is_writable(part->fd))
		return gdr_fail(error, GDR_FAILED_PERMISSION, EACCES,
				"the descriptor was shared read-only: open it with readonly=True");
	if (!gdr_fd_map(memory, part, offset, nbytes, readonly, at, piece, kind, error))
		return 0;
	/* The end is told only when the last mapping is gone; new ones are refused before. */
	if (error->number == EINVAL && gdr_share_ended(part->fd, END_TAKES_MS))
		return gdr_fail_revoked(error);
	return -1;
}

static bool share_revoked(struct gdr_memory *memory)
{
	return gdr_share_ended(memory->parts[0].fd, 0);
}

static const struct gdr_memory_functions share_functions = {
	.map = gdr_share_map,
	.unmap = gdr_fd_unmap,
	.release = gdr_fd_release,
	.revoked = share_revoked,
};

struct gdr_memory *gdr_share_take(int fd, struct gdr_error *error)
{
	struct gdr_part part = {.fd = -1};
	struct gdr_memory *memory;
	int64_t nbytes = gdr_share_size(fd);

	if (nbytes < 0) {
		gdr_fail(error, GDR_FAILED_HANDLE, EINVAL,
			 "file descriptor %d is no share of a pin: pass one that Pin.export() gave",
			 fd);
		return NULL;
	}
	memory = gdr_memory_new(&gdr_backend_gdrdrv, &share_functions, sizeof(*memory), error);
	if (!memory)
		return NULL;
	memory->kind = GDR_MAPPING_WC;
	snprintf(memory->location, sizeof(memory->location), "an unknown GPU");
	part.nbytes = (uint64_t)nbytes;
	return gdr_fd_add(memory, fd, &part, error) ? gdr_memory_undo(memory) : memory;
}
