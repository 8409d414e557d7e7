/* SPDX-License-Identifier: MIT */
/* What the types at the ends of rings share: their memory, and pushes and pops of records. */
#ifndef GDRPY_RECORDS_H
#define GDRPY_RECORDS_H

#include "gdrpy/inbox.h"
#include "mapping.h"
#include "spin.h"

/* Which end of a ring an object is. */
enum core_ring_end {
	CORE_BOTH_ENDS, /* it makes the ring: both ends are this process's */
	CORE_CPU_END,	/* of a named one, whose kernel's end is of another process */
	CORE_KERNEL_END,
};

/* The memory of a ring, held: close() of its mappings must not unmap them. */
struct core_ring_memory {
	struct mapping *gpu, *host; /* NULL until they are held */
	uint64_t gpu_ptr, host_ptr; /* their addresses for kernels; 0 at the CPU's end */
	enum core_ring_end end;
	uint64_t number;  /* of this end, if it is the CPU's: no other has it, or had it before */
	PyObject *reason; /* an exception, if nothing more is heard of the kernel's end; or NULL */
	bool left;	  /* the kernel's end has given its place up, or lost it */
};

/* The first members of every type that has such memory. */
struct core_ring_object {
	PyObject_HEAD struct core_ring_memory memory;
};

#define CORE_VISIT_RING(memory)                                                                    \
	Py_VISIT((memory).gpu);                                                                    \
	Py_VISIT((memory).host);                                                                   \
	Py_VISIT((memory).reason)

/* The kernel's end as the CPU's end knows it. Without a name it is always open. */
enum core_ring_state {
	CORE_END_OPEN,
	CORE_END_GONE,	  /* there is none, after there was one */
	CORE_END_LOST,	  /* the ring or this end is no longer known to the broker */
	CORE_END_UNHEARD, /* nothing more will be heard of it, for the reason in the memory */
	CORE_END_WAITING, /* it has not taken this end up yet */
};

/* Raise Closed for a call that finds such a state, other than CORE_END_OPEN; returns false. */
bool core_ring_refuse(const struct core_ring_memory *memory, const char *method,
		      enum core_ring_state state);

/*
 * The arguments of _set_state(state, settled, reason) at the CPU's end: one of the first four
 * states, a number for an inbox, and the exception of CORE_END_UNHEARD or None. False with an
 * exception set.
 */
bool core_ring_told(struct core_ring_memory *memory, PyObject *args, enum core_ring_state *state,
		    unsigned long long *settled);

/* Whether an object is this end of a named ring, held by this process; else false with Closed. */
bool core_ring_is_end(const struct core_ring_memory *memory, enum core_ring_end end);

/* A word of the host memory of a named ring. */
static inline uint64_t *core_ring_word(const struct core_ring_memory *memory, size_t offset)
{
	return (uint64_t *)(memory->host->address + offset);
}

static inline uint64_t core_ring_load(const struct core_ring_memory *memory, size_t offset)
{
	return __atomic_load_n(core_ring_word(memory, offset), __ATOMIC_ACQUIRE);
}

static inline void core_ring_store(const struct core_ring_memory *memory, size_t offset,
				   uint64_t value)
{
	__atomic_store_n(core_ring_word(memory, offset), value, __ATOMIC_RELEASE);
}

/* The bytes that a ring needs besides its records, and for a byte of a record, or of an answer. */
struct core_ring_needs {
	Py_ssize_t gpu, host, gpu_record, host_record, host_answer;
	Py_ssize_t capacity; /* at most */
};

/*
 * Hold the memory of a new object from the arguments (memory, host, record_nbytes, capacity), and
 * answer_nbytes if `answers` is not NULL, which are checked; and for one end of a named ring `end`
 * and the CPU's `number`. False with an exception set.
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

/* The same, and another kernel's end may not have the ring by now. */
static inline bool core_ring_has_place(const struct core_ring_memory *memory)
{
	return core_ring_is_ours(memory) && !__atomic_load_n(&memory->left, __ATOMIC_RELAXED);
}

/* Raise Closed if another kernel's end may have the ring by now; returns whether it may not. */
bool core_ring_check_place(const struct core_ring_memory *memory, const char *method);

/* _leave(): have readers, writers and servers of a kernel's end raise Closed. */
PyObject *core_ring_leave(PyObject *self, PyObject *unused);

/* Whether this process may use the object; false with an exception set. */
bool core_ring_usable(const struct core_ring_memory *memory, const char *type, const char *method);

/* One end of a ring: `self` and how to use it. The `method` is for messages. */
struct core_pushing {
	void *self;
	const char *method;
	bool (*may_push)(void *self, const char *method); /* false with an exception set */
	uint64_t (*push)(void *self, const char *records, uint64_t count);
	bool (*has_news)(void *self);	/* of room or of an end; runs without the GIL */
	bool (*is_held_up)(void *self); /* by another producer, not by lack of room; may be NULL */
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
