/* SPDX-License-Identifier: MIT */
/* What the types at the ends of rings share: their memory, and pushes and pops of records. */
#ifndef GDRPY_RECORDS_H
#define GDRPY_RECORDS_H

#include "gdrpy/inbox.h"
#include "mapping.h"
#include "spin.h"

/* The memory of a ring, held: close() of its mappings must not unmap them. */
struct core_ring_memory {
	struct mapping *gpu, *host; /* NULL until they are held */
	uint64_t gpu_ptr, host_ptr; /* their addresses for kernels */
};

/* The bytes that a ring needs besides its records, and for a byte of a record, or of an answer. */
struct core_ring_needs {
	Py_ssize_t gpu, host, gpu_record, host_record, host_answer;
	Py_ssize_t capacity; /* at most */
};

/*
 * Hold the memory of a new object from the arguments (memory, host, record_nbytes, capacity), and
 * answer_nbytes if `answers` is not NULL, which are checked. False with an exception set.
 */
bool core_ring_hold(struct core_ring_memory *memory, const char *type, PyObject *args,
		    PyObject *kwargs, const struct core_ring_needs *needs,
		    struct gdr_slots *records, struct gdr_slots *answers);
void core_ring_let_go(struct core_ring_memory *memory);

/* Whether the memory is held, by this process. */
static inline bool core_ring_is_ours(const struct core_ring_memory *memory)
{
	return memory->gpu && memory->gpu->generation == core_fork_generation;
}

/* Whether this process may use the object; false with an exception set. */
bool core_ring_usable(const struct core_ring_memory *memory, const char *type, const char *method);

/* One end of a ring: `self` and how to use it. The `method` is for messages. */
struct core_pushing {
	void *self;
	const char *method;
	bool (*may_push)(void *self, const char *method); /* false with an exception set */
	uint64_t (*push)(void *self, const char *records, uint64_t count);
	bool (*has_news)(void *self); /* of room or of an end; runs without the GIL */
	uint64_t nbytes, capacity;
	const uint64_t *pushed; /* records, so far */
};

struct core_popping {
	void *self;
	const char *method;
	bool (*may_pop)(void *self, const char *method); /* false with an exception set */
	uint64_t (*ready)(void *self, uint64_t most);
	void (*take)(void *self, char *records, uint64_t count);
	bool (*ended)(void *self);
	bool (*has_news)(void *self); /* of a record or of an end; runs without the GIL */
	uint64_t nbytes;
	int looks; /* as of core_spin() */
};

/* push(record, timeout=None) and push_many(records, timeout=None). */
PyObject *core_push(const struct core_pushing *end, bool many, CORE_PARAMETERS);

/* pop(timeout=None) and pop_many(limit=None, timeout=None). */
PyObject *core_pop(const struct core_popping *end, CORE_PARAMETERS);
PyObject *core_pop_many(const struct core_popping *end, CORE_PARAMETERS);

#endif
