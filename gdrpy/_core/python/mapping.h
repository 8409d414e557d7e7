/* SPDX-License-Identifier: MIT */
/* The Mapping type's C side, for the types that work on a mapping (Flag). */
#ifndef GDRPY_MAPPING_H
#define GDRPY_MAPPING_H

#include "common/users.h"
#include "copy/copy.h"
#include "memory/map.h"
#include "pyhelp.h"

/* Copies that take longer than about 4 us let other Python threads run meanwhile. */
#define CORE_UNLOCKED_WRITE (64 * 1024)
#define CORE_UNLOCKED_READ (4 * 1024)

struct mapping {
	PyObject_HEAD char *address; /* NULL once closed */
	Py_ssize_t nbytes;
	enum core_mapping_kind type;
	bool readonly;
	bool revoked; /* the memory is gone, and this process has been told */
	unsigned int generation;
	core_users users;    /* views: buffers exported, and calls that let go of the GIL */
	int batch;	     /* depth of batch() blocks: writes are not fenced */
	struct core_map map; /* what to unmap after the last use, if base is not NULL */
	PyObject *release;   /* else called then, once, with no arguments; in both cases let go */
	PyObject *backend, *ptr, *device; /* what Python calls it */
};

extern PyTypeObject *core_mapping_type_object;

/* Checks that a call makes before it touches the memory; false with an exception set. */
bool core_mapping_usable(struct mapping *self, const char *method);
bool core_mapping_writable(struct mapping *self, const char *method);
bool core_mapping_range(struct mapping *self, const char *method, Py_ssize_t offset,
			Py_ssize_t nbytes);

/* That bytes to be copied are not those of the range, `extent` bytes at offset. */
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

/*
 * One more view or call, until core_users_let_go(); false with an exception set. What is called
 * _checked is for callers that have just found the mapping usable.
 */
bool core_mapping_hold(struct mapping *self, const char *method, uint64_t one);
bool core_mapping_hold_checked(struct mapping *self, const char *method, uint64_t one);

/*
 * The last check of a call that then touches the memory, and its end. No other thread closes the
 * mapping meanwhile: the GIL sees to that, or where there is none, close() waits. In between
 * nothing may wait, nor run Python code.
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
	core_users_let_go(&self->users, CORE_ONE_CALL);
#else
	(void)self;
#endif
}

/* Between the two other Python threads run, and the call is a view. */
PyThreadState *core_mapping_unlock(struct mapping *self);
void core_mapping_relock(struct mapping *self, PyThreadState *thread);

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
 * Copy to or from a range that was checked, of a mapping that was entered, and fence unless
 * batching. Several threads copy only what is worth it; long copies let other Python threads run
 * meanwhile.
 */
void core_mapping_put(struct mapping *self, unsigned int threads, Py_ssize_t offset,
		      const void *data, Py_ssize_t nbytes);
void core_mapping_get(struct mapping *self, unsigned int threads, Py_ssize_t offset, void *data,
		      Py_ssize_t nbytes);

/* What makes a mapping out of a new object, whose fields are all zero. */
void core_mapping_begin(struct mapping *self, char *address, Py_ssize_t nbytes,
			enum core_mapping_kind type, bool readonly, PyObject *release);
void core_mapping_name(struct mapping *self, PyObject *backend, PyObject *ptr, PyObject *device);

/* In memfd.c: functions of the module, and Mapping._of_memfd(). */
PyObject *core_lend_private(PyObject *module, PyObject *descriptor);
PyObject *core_take_back_private(PyObject *module, PyObject *none);
PyObject *core_sealed_size(PyObject *module, PyObject *descriptor);
PyObject *core_take_memfd(PyObject *module, PyObject *descriptor);
PyObject *core_map_memfd(PyObject *type, PyObject *args);

/* In transfers.c: open_dma(context). */
PyObject *core_open_dma(PyObject *module, PyObject *context);

/* In mapping_copies.c: methods of the same names. */
PyObject *core_mapping_write(struct mapping *self, PyObject *const *args, Py_ssize_t nargs,
			     PyObject *kwnames);
PyObject *core_mapping_read(struct mapping *self, PyObject *const *args, Py_ssize_t nargs,
			    PyObject *kwnames);
PyObject *core_mapping_readinto(struct mapping *self, PyObject *const *args, Py_ssize_t nargs,
				PyObject *kwnames);
PyObject *core_mapping_store(struct mapping *self, PyObject *const *args, Py_ssize_t nargs,
			     PyObject *kwnames);
PyObject *core_mapping_load(struct mapping *self, PyObject *const *args, Py_ssize_t nargs,
			    PyObject *kwnames);

/* In write_many.c and scatter.c: Mapping.write_many() and Mapping.scatter(). */
PyObject *core_mapping_write_many(struct mapping *self, PyObject *iterable);
PyObject *core_mapping_scatter(struct mapping *self, PyObject *const *args, Py_ssize_t nargs,
			       PyObject *kwnames);

/* In strided.c: Mapping.write_strided() and Mapping.readinto_strided(). */
PyObject *core_mapping_write_strided(struct mapping *self, PyObject *const *args, Py_ssize_t nargs,
				     PyObject *kwnames);
PyObject *core_mapping_readinto_strided(struct mapping *self, PyObject *const *args,
					Py_ssize_t nargs, PyObject *kwnames);

extern PyType_Spec core_mapping_spec;
extern PyType_Spec core_flag_spec;
extern PyType_Spec core_transfers_spec;

#endif
