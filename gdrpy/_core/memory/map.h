/* SPDX-License-Identifier: MIT */
/* Shared mappings of a file descriptor. Every backend's CPU view consists of them. */
#ifndef GDRPY_MAP_H
#define GDRPY_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A byte range, and the whole pages that are mapped around it. */
struct core_map {
	void *address; /* the first byte asked for */
	size_t nbytes; /* bytes asked for */
	void *base;    /* page-aligned start of the mapped range */
	size_t length; /* whole pages */
};

/* Return the page-aligned file offset of a byte range, and set map->length to its whole pages. */
uint64_t core_map_pages(struct core_map *map, uint64_t offset, size_t nbytes);

/*
 * Map the pages chosen by core_map_pages() at a file offset, replacing those at `at` if it is not
 * NULL. A forked child does not inherit the mapping, because the driver objects belong to the
 * parent. 0 or -errno.
 */
int core_map_fd(struct core_map *map, int fd, uint64_t file_offset, uint64_t offset, bool readonly,
		void *at);
int core_map_undo(struct core_map *map);

/* Reserve address space for these pages, which are then mapped piece by piece. 0 or -errno. */
int core_map_reserve(struct core_map *map, uint64_t offset);

#endif
