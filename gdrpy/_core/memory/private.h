/* SPDX-License-Identifier: MIT */
/* What the backends make memory of. */
#ifndef GDRPY_MEMORY_PRIVATE_H
#define GDRPY_MEMORY_PRIVATE_H

#include "memory/memory.h"
#include "rm/client.h"

/* A stretch of the memory: a part of what a descriptor shows, or of a block in the RM client. */
struct gdr_part {
	uint64_t nbytes;
	uint64_t offset; /* of its first byte: whole pages, but of the first part */
	int fd;		 /* its own, -1 for none */
	struct gdr_nvrm_memory block;
};

/* The stretch of a view that lies in one part. */
struct gdr_piece {
	struct gdr_map map;
	const struct gdr_part *part;
	uint64_t token;
};

struct gdr_memory_functions {
	/*
	 * Map a range of a part, over the pages at an address if that is not NULL. `kind` is set to
	 * that of the memory before, and may be changed.
	 */
	int (*map)(struct gdr_memory *memory, const struct gdr_part *part, uint64_t offset,
		   size_t nbytes, bool readonly, void *at, struct gdr_piece *piece,
		   enum gdr_mapping_kind *kind, struct gdr_error *error);
	int (*unmap)(struct gdr_memory *memory, struct gdr_piece *piece, struct gdr_error *error);
	/* Give the parts back, and what else it holds; the structure is freed by the caller. */
	int (*release)(struct gdr_memory *memory, struct gdr_error *error);
	/* May be NULL: the mappings are of one kind, nobody revokes, nobody else may map. */
	int (*want)(struct gdr_memory *memory, enum gdr_mapping_kind kind, struct gdr_error *error);
	bool (*revoked)(struct gdr_memory *memory);
	int (*share)(struct gdr_memory *memory, bool readonly, struct gdr_error *error);
};

/*
 * New memory with room for some parts, of which it has none; NULL with *error filled in. The
 * structure has `size` bytes, of which struct gdr_memory is the first member.
 */
struct gdr_memory *gdr_memory_new(const struct gdr_backend *backend,
				  const struct gdr_memory_functions *functions, size_t size,
				  struct gdr_error *error);

/* Add a part at the end, which belongs to the memory from then on. */
int gdr_memory_add(struct gdr_memory *memory, const struct gdr_part *part, struct gdr_error *error);

/* Free memory that holds nothing. */
void gdr_memory_free(struct gdr_memory *memory);

/* Give it back after a failure whose *error is to stay; NULL. */
struct gdr_memory *gdr_memory_undo(struct gdr_memory *memory);

/* Add a part of what a descriptor shows, which stays the caller's: it gets a duplicate. */
int gdr_fd_add(struct gdr_memory *memory, int fd, const struct gdr_part *part,
	       struct gdr_error *error);

/* The functions of memory whose parts are descriptors, which it owns. */
extern const struct gdr_memory_functions gdr_fd_memory_functions;
int gdr_fd_map(struct gdr_memory *memory, const struct gdr_part *part, uint64_t offset,
	       size_t nbytes, bool readonly, void *at, struct gdr_piece *piece,
	       enum gdr_mapping_kind *kind, struct gdr_error *error);
int gdr_fd_unmap(struct gdr_memory *memory, struct gdr_piece *piece, struct gdr_error *error);
int gdr_fd_release(struct gdr_memory *memory, struct gdr_error *error);

#endif
