/* SPDX-License-Identifier: MIT */
/* Memory behind descriptors: a dma-buf, a shared pin, or simulated GPU memory. */
#include <errno.h>

#include "common/forks.h"
#include "memory/private.h"

int core_fd_add(struct core_memory *memory, int fd, const struct core_part *part,
		struct core_error *error)
{
	struct core_part own = *part;

	own.fd = core_private_duplicate(fd);
	if (own.fd < 0)
		return core_fail_call(error, errno, 0, "duplicating file descriptor %d", fd);
	if (!core_memory_add(memory, &own, error))
		return 0;
	core_private_close(own.fd);
	return -1;
}

int core_fd_map(struct core_memory *memory, struct core_stretch *stretch, bool readonly,
		enum core_mapping_kind *kind, struct core_error *error)
{
	uint64_t start = stretch->part->offset + stretch->offset;
	uint64_t page = core_map_pages(&stretch->map, start, stretch->nbytes);
	int ret = core_map_fd(&stretch->map, stretch->part->fd, page, start, readonly, stretch->at);

	(void)memory;
	(void)kind;
	if (!ret)
		return 0;
	core_fail_call(error, -ret, 0, "mmap");
	return core_explain(error, "mapping %zu bytes at offset %llu", stretch->nbytes,
			    (unsigned long long)stretch->offset);
}

int core_fd_unmap(struct core_memory *memory, struct core_stretch *stretch,
		  struct core_error *error)
{
	int ret = core_map_undo(&stretch->map);

	(void)memory;
	return ret ? core_fail_call(error, -ret, 0, "munmap") : 0;
}

int core_fd_release(struct core_memory *memory, struct core_error *error)
{
	(void)error;
	for (unsigned int i = 0; i < memory->nparts; i++)
		if (memory->parts[i].fd >= 0)
			core_private_close(memory->parts[i].fd);
	return 0;
}

const struct core_memory_functions core_fd_memory_functions = {
	.map = core_fd_map,
	.unmap = core_fd_unmap,
	.release = core_fd_release,
};
