/* SPDX-License-Identifier: MIT */
/* Shared mappings of a file descriptor: what every backend's CPU view ends in. */
#ifndef GDRPY_MAP_H
#define GDRPY_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A byte range of some memory, and the whole pages around it that are mapped. */
struct core_map {
	void *address; /* the first byte asked for */
	size_t nbytes; /* bytes asked for */
	void *base;    /* page-aligned start of what is mapped */
	size_t length; /* whole pages */
};

/* The page-aligned file offset of a byte range, with map->length set to the pages it needs. */
uint64_t core_map_pages(struct core_map *map, uint64_t offset, size_t nbytes);

/*
 * Map the pages chosen by core_map_pages() at a file offset; in place of those at an address, if it
 * is not NULL. The mapping is not inherited by fork: a child has no right to it, and its driver
 * objects belong to the parent. 0 or -errno.
 */
int core_map_fd(struct core_map *map, int fd, uint64_t file_offset, uint64_t offset, bool readonly,
		void *at);
int core_map_undo(struct core_map *map);

/* Keep address space free for these pages, which are then mapped piece by piece. 0 or -errno. */
int core_map_reserve(struct core_map *map, uint64_t offset);

#endif
