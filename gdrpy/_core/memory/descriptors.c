/* SPDX-License-Identifier: MIT */
/* Memory behind descriptors: a dma-buf, a share of a pin, memory of the simulated GPU. */
#include <errno.h>

#include "common/forks.h"
#include "memory/private.h"

int gdr_fd_add(struct gdr_memory *memory, int fd, const struct gdr_part *part,
	       struct gdr_error *error)
{
	struct gdr_part own = *part;

	own.fd = gdr_private_duplicate(fd);
	if (own.fd < 0)
		return gdr_fail_call(error, errno, 0, "duplicating file descriptor %d", fd);
	if (!gdr_memory_add(memory, &own, error))
		return 0;
	gdr_private_close(own.fd);
	return -1;
}

int gdr_fd_map(struct gdr_memory *memory, const struct gdr_part *part, uint64_t offset,
	       size_t nbytes, bool readonly, void *at, struct gdr_piece *piece,
	       enum gdr_mapping_kind *kind, struct gdr_error *error)
{
	uint64_t start = part->offset + offset;
	uint64_t page = gdr_map_pages(&piece->map, start, nbytes);
	int ret = gdr_map_fd(&piece->map, part->fd, page, start, readonly, at);

	(void)memory;
	(void)kind;
	if (ret)
		gdr_fail_call(error, -ret, 0, "mmap");
	return ret ? gdr_explain(error, "mapping %zu bytes at offset %llu", nbytes,
				 (unsigned long long)offset)
		   : 0;
}

int gdr_fd_unmap(struct gdr_memory *memory, struct gdr_piece *piece, struct gdr_error *error)
{
	int ret = gdr_map_undo(&piece->map);

	(void)memory;
	return ret ? gdr_fail_call(error, -ret, 0, "munmap") : 0;
}

int gdr_fd_release(struct gdr_memory *memory, struct gdr_error *error)
{
	(void)error;
	for (unsigned int i = 0; i < memory->nparts; i++)
		if (memory->parts[i].fd >= 0)
			gdr_private_close(memory->parts[i].fd);
	return 0;
}

const struct gdr_memory_functions gdr_fd_memory_functions = {
	.map = gdr_fd_map,
	.unmap = gdr_fd_unmap,
	.release = gdr_fd_release,
};
