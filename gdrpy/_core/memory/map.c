/* SPDX-License-Identifier: MIT */
#include "memory/map.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/forks.h"

uint64_t core_map_pages(struct core_map *map, uint64_t offset, size_t nbytes)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t first = offset & ~(page - 1);

	map->nbytes = nbytes;
	map->length = ((offset + nbytes + page - 1) & ~(page - 1)) - first;
	return first;
}

int core_map_fd(struct core_map *map, int fd, uint64_t file_offset, uint64_t offset, bool readonly,
		void *at)
{
	int flags = MAP_SHARED | (at ? MAP_FIXED : 0);
	int protection = readonly ? PROT_READ : PROT_READ | PROT_WRITE;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	int error = 0;

	/* A fork between mmap and MADV_DONTFORK would leave the child a mapping. */
	core_forks_hold();
	map->base = mmap(at, map->length, protection, flags, fd, (off_t)file_offset);
	if (map->base == MAP_FAILED) {
		error = -errno;
	} else if (madvise(map->base, map->length, MADV_DONTFORK)) {
		error = -errno;
		if (!at) /* else the caller unmaps its reservation */
			munmap(map->base, map->length);
	}
	core_forks_let_go();
	if (error) {
		map->base = NULL;
		return error;
	}
	map->address = (char *)map->base + (offset & (page - 1));
	return 0;
}

int core_map_reserve(struct core_map *map, uint64_t offset)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	map->base = mmap(NULL, map->length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
			 -1, 0);
	if (map->base == MAP_FAILED)
		return -errno;
	map->address = (char *)map->base + (offset & (page - 1));
	return 0;
}

int core_map_undo(struct core_map *map)
{
	return munmap(map->base, map->length) ? -errno : 0;
}
