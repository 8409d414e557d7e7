/* SPDX-License-Identifier: MIT */
/* What the backends make memory of. */
#ifndef GDRPY_MEMORY_PRIVATE_H
#define GDRPY_MEMORY_PRIVATE_H

#include "memory/memory.h"
#include "rm/client.h"

/* A stretch of the memory: a part of what a descriptor shows, or of a block in the RM client. */
struct core_part {
	uint64_t nbytes;
	uint64_t offset; /* of its first byte: whole pages, but of the first part */
	int fd;		 /* its own, -1 for none */
	struct core_rm_memory block;
};

/* The stretch of a view that lies in one part. */
struct core_stretch {
	struct core_map map;
	const struct core_part *part;
	uint64_t token;
};

struct core_memory_functions {
	/*
	 * Map a range of a part, over the pages at an address if that is not NULL. `kind` is set to
	 * that of the memory before, and may be changed.
	 */
	int (*map)(struct core_memory *memory, const struct core_part *part, uint64_t offset,
		   size_t nbytes, bool readonly, void *at, struct core_stretch *stretch,
		   enum core_mapping_kind *kind, struct core_error *error);
	int (*unmap)(struct core_memory *memory, struct core_stretch *stretch,
		     struct core_error *error);
	/* Give the parts back, and what else it holds; the structure is freed by the caller. */
	int (*release)(struct core_memory *memory, struct core_error *error);
	/* May be NULL: the mappings are of one kind, nobody revokes, nobody else may map. */
	int (*want)(struct core_memory *memory, enum core_mapping_kind kind,
		    struct core_error *error);
	bool (*revoked)(struct core_memory *memory);
	int (*share)(struct core_memory *memory, bool readonly, struct core_error *error);
};

/*
 * New memory with room for some parts, of which it has none; NULL with *error filled in. The
 * structure has `size` bytes, of which struct core_memory is the first member.
 */
struct core_memory *core_memory_new(const struct core_backend *backend,
				    const struct core_memory_functions *functions, size_t size,
				    struct core_error *error);

/* Add a part at the end, which belongs to the memory from then on. */
int core_memory_add(struct core_memory *memory, const struct core_part *part,
		    struct core_error *error);

/* Free memory that holds nothing. */
void core_memory_free(struct core_memory *memory);

/* Give it back after a failure whose *error is to stay; NULL. */
struct core_memory *core_memory_undo(struct core_memory *memory);

/* Add a part of what a descriptor shows, which stays the caller's: it gets a duplicate. */
int core_fd_add(struct core_memory *memory, int fd, const struct core_part *part,
		struct core_error *error);

/* The functions of memory whose parts are descriptors, which it owns. */
extern const struct core_memory_functions core_fd_memory_functions;
int core_fd_map(struct core_memory *memory, const struct core_part *part, uint64_t offset,
		size_t nbytes, bool readonly, void *at, struct core_stretch *stretch,
		enum core_mapping_kind *kind, struct core_error *error);
int core_fd_unmap(struct core_memory *memory, struct core_stretch *stretch,
		  struct core_error *error);
int core_fd_release(struct core_memory *memory, struct core_error *error);

#endif
