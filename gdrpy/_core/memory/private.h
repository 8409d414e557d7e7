/* SPDX-License-Identifier: MIT */
/* The parts of memory that backends implement. */
#ifndef GDRPY_MEMORY_PRIVATE_H
#define GDRPY_MEMORY_PRIVATE_H

#include "memory/memory.h"
#include "rm/client.h"

/* A part of the memory: a range of a descriptor, or of a block in the RM client. */
struct core_part {
	uint64_t nbytes;
	uint64_t offset; /* of its first byte; page-aligned except in the first part */
	int fd;		 /* owned; -1 if none */
	struct core_rm_memory block;
};

/* The stretch of a view that lies in one part. */
struct core_stretch {
	const struct core_part *part;
	uint64_t offset; /* in the part */
	size_t nbytes;
	void *at; /* where it is mapped, replacing these pages; NULL: anywhere */
	struct core_map map;
	uint64_t token;
};

struct core_memory_functions {
	/* Map a stretch. `kind` holds the memory's kind and may be changed. */
	int (*map)(struct core_memory *memory, struct core_stretch *stretch, bool readonly,
		   enum core_mapping_kind *kind, struct core_error *error);
	int (*unmap)(struct core_memory *memory, struct core_stretch *stretch,
		     struct core_error *error);
	/* Release everything that the memory holds. The caller frees the structure. */
	int (*release)(struct core_memory *memory, struct core_error *error);
	/* NULL if the mappings have one kind, cannot be revoked, or cannot be shared. */
	int (*want)(struct core_memory *memory, enum core_mapping_kind kind,
		    struct core_error *error);
	bool (*revoked)(struct core_memory *memory);
	int (*share)(struct core_memory *memory, bool readonly, struct core_error *error);
};

/*
 * New memory without parts, or NULL with *error filled in. The structure has `size` bytes and
 * begins with struct core_memory.
 */
struct core_memory *core_memory_new(const struct core_backend *backend,
				    const struct core_memory_functions *functions, size_t size,
				    struct core_error *error);

/* Append a part, which the memory then owns. */
int core_memory_add(struct core_memory *memory, const struct core_part *part,
		    struct core_error *error);

/* Release the memory after a failure without changing the caller's error. Returns NULL. */
struct core_memory *core_memory_undo(struct core_memory *memory);

/* Append a range of a descriptor. The memory takes a duplicate; the caller keeps its own. */
int core_fd_add(struct core_memory *memory, int fd, const struct core_part *part,
		struct core_error *error);

/* For memory whose parts are descriptors that it owns. */
extern const struct core_memory_functions core_fd_memory_functions;
int core_fd_map(struct core_memory *memory, struct core_stretch *stretch, bool readonly,
		enum core_mapping_kind *kind, struct core_error *error);
int core_fd_unmap(struct core_memory *memory, struct core_stretch *stretch,
		  struct core_error *error);
int core_fd_release(struct core_memory *memory, struct core_error *error);

#endif
