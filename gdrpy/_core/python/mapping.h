/* SPDX-License-Identifier: MIT */
/* The Mapping type in C, for the types that use a mapping, such as Flag. */
#ifndef GDRPY_MAPPING_H
#define GDRPY_MAPPING_H

#include "common/users.h"
#include "copy/copy.h"
#include "memory/map.h"
#include "module.h"

/* During copies that take longer than about 4 us, other Python threads run. */
#define CORE_UNLOCKED_WRITE (64 * 1024)
#define CORE_UNLOCKED_READ (4 * 1024)

struct mapping {
	PyObject_HEAD char *address; /* NULL once released */
	Py_ssize_t nbytes;
	enum core_mapping_kind type;
	bool readonly;
	bool revoked; /* the memory was freed, and this process knows */
	bool retired; /* closed while it had users: the last one releases it */
	unsigned int generation;
	core_users users;    /* views: exported buffers, and calls that release the GIL */
	int batch;	     /* depth of batch() blocks: writes are not fenced */
	struct core_map map; /* unmapped after the last use, if base is not NULL */
	PyObject *release;   /* else called then, once, without arguments; then dropped */
	PyObject *keep;	     /* dropped after that: what a retired mapping keeps; or NULL */
	PyObject *backend, *ptr, *device; /* attributes for Python */
};

/* Checks before a call touches the memory; false with an exception set. */
bool core_mapping_usable(struct mapping *self, const char *method);
bool core_mapping_writable(struct mapping *self, const char *method);
bool core_mapping_range(struct mapping *self, const char *method, Py_ssize_t offset,
			Py_ssize_t nbytes);

/* Refuse data that overlaps the range of `extent` bytes at offset. */
bool core_mapping_refuse_overlap(const char *method, const char *name, Py_ssize_t offset,
				 Py_ssize_t extent);

static inline bool core_mapping_apart(struct mapping *self, const char *method, const char *name,
				      Py_ssize_t offset, Py_ssize_t extent, const void *data,
				      Py_ssize_t nbytes)
{
	return !core_overlap(self->address + offset, (size_t)extent, data, (size_t)nbytes) ||
	       core_mapping_refuse_overlap(method, name, offset, extent);
}

bool core_mapping_word(struct mapping *self, const char *method, Py_ssize_t offset,
		       Py_ssize_t width);

/* A word's arguments: an offset, 0 if it is NULL, and a width, then 4. */
static inline __attribute__((always_inline)) bool
core_parse_word(const char *method, PyObject *offset_object, PyObject *width_object,
		Py_ssize_t *offset, Py_ssize_t *width)
{
	*offset = core_as_size(method, "offset", offset_object, 0);
	*width = *offset < 0 ? -1 : core_as_size(method, "width", width_object, 4);
	return *width >= 0;
}

/*
 * Add a view or a call, until core_mapping_let_go(); false with an exception set. The _checked
 * variant is for callers that have just found the mapping usable.
 */
bool core_mapping_hold(struct mapping *self, const char *method, uint64_t one);
bool core_mapping_hold_checked(struct mapping *self, const char *method, uint64_t one);

/* Release a retired mapping if its last user has gone. */
void core_mapping_settle(struct mapping *self);

/* The caller must not touch the memory any more, and must hold a reference to the mapping. */
static inline void core_mapping_let_go(struct mapping *self, uint64_t one)
{
	core_users_let_go(&self->users, one);
	if (__atomic_load_n(&self->retired, __ATOMIC_RELAXED))
		core_mapping_settle(self);
}

/*
 * The last check before a call touches the memory, and the end of the call. No other thread closes
 * the mapping in between: the GIL prevents it, or close() waits where there is no GIL. The call
 * must not wait or run Python code in between.
 */
static inline bool core_mapping_enter_checked(struct mapping *self, const char *method)
{
#ifdef Py_GIL_DISABLED
	return core_mapping_hold_checked(self, method, CORE_ONE_CALL);
#else
	(void)self;
	(void)method;
	return true;
#endif
}

static inline bool core_mapping_enter(struct mapping *self, const char *method)
{
	return core_mapping_usable(self, method) && core_mapping_enter_checked(self, method);
}

static inline void core_mapping_leave(struct mapping *self)
{
#ifdef Py_GIL_DISABLED
	core_mapping_let_go(self, CORE_ONE_CALL);
#else
	(void)self;
#endif
}

/* Between these, if the call takes long, other Python threads run, and it counts as a view. */
static inline PyThreadState *core_mapping_unlock(struct mapping *self, bool takes_long)
{
	if (!takes_long)
		return NULL;
	core_users_stay(&self->users);
	return PyEval_SaveThread();
}

static inline void core_mapping_relock(struct mapping *self, PyThreadState *thread)
{
	if (!thread)
		return;
	PyEval_RestoreThread(thread);
	core_mapping_let_go(self, CORE_ONE_VIEW);
}

/* The fence of a write, unless in a batch(). */
static inline void core_mapping_fence(const struct mapping *self)
{
	if (!__atomic_load_n(&self->batch, __ATOMIC_RELAXED))
		core_store_fence();
}

/* One aligned word of 4 or 8 bytes, in one access that the compiler cannot split or move. */
void core_word_store(char *address, Py_ssize_t width, uint64_t value);
uint64_t core_word_load(const char *address, Py_ssize_t width);

/* The word at an offset, fenced from the loads that follow. */
uint64_t core_mapping_load_word(struct mapping *self, Py_ssize_t offset, Py_ssize_t width);

/*
 * Copy to or from a checked range of an entered mapping; a copy to it is fenced unless batching.
 * Several threads are used only for long copies, during which other Python threads run.
 */
void core_mapping_put(struct mapping *self, unsigned int threads, Py_ssize_t offset,
		      const void *data, Py_ssize_t nbytes);
void core_mapping_get(struct mapping *self, unsigned int threads, Py_ssize_t offset, void *data,
		      Py_ssize_t nbytes);

/* Initialize a new mapping, whose fields are all zero, except its `backend`, `ptr` and `device`. */
void core_mapping_begin(struct mapping *self, char *address, Py_ssize_t nbytes,
			enum core_mapping_kind type, bool readonly, PyObject *release);

/* In mapping_copies.c: methods of the same names. */
PyObject *core_mapping_write(struct mapping *self, CORE_PARAMETERS);
PyObject *core_mapping_read(struct mapping *self, CORE_PARAMETERS);
PyObject *core_mapping_readinto(struct mapping *self, CORE_PARAMETERS);
PyObject *core_mapping_store(struct mapping *self, CORE_PARAMETERS);
PyObject *core_mapping_load(struct mapping *self, CORE_PARAMETERS);

/* In write_many.c and scatter.c: Mapping.write_many() and Mapping.scatter(). */
PyObject *core_mapping_write_many(struct mapping *self, PyObject *iterable);
PyObject *core_mapping_scatter(struct mapping *self, CORE_PARAMETERS);

/* In strided.c: Mapping.write_strided() and Mapping.readinto_strided(). */
PyObject *core_mapping_write_strided(struct mapping *self, CORE_PARAMETERS);
PyObject *core_mapping_readinto_strided(struct mapping *self, CORE_PARAMETERS);

#endif
