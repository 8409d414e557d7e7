/* SPDX-License-Identifier: MIT */
/* The Mapping type's C side, for the types that work on a mapping (Flag). */
#ifndef GDRPY_MAPPING_H
#define GDRPY_MAPPING_H

#include "copy.h"
#include "map.h"
#include "pyhelp.h"

/* Copies that take longer than about 4 us let other Python threads run meanwhile. */
#define GDR_UNLOCKED_WRITE (64 * 1024)
#define GDR_UNLOCKED_READ (4 * 1024)

struct mapping {
	PyObject_HEAD char *address; /* NULL once closed */
	Py_ssize_t nbytes;
	enum gdr_mapping_kind type;
	bool readonly;
	bool revoked; /* the memory is gone, and this process has been told */
	unsigned int generation;
	Py_ssize_t users;   /* buffers exported, and calls running without the GIL */
	int batch;	    /* depth of batch() blocks: writes are not fenced */
	struct gdr_map map; /* what to unmap after the last use, if base is not NULL */
	int fd;		    /* what to close then, -1 for nothing */
	PyObject *release;  /* else called then, once, with no arguments; in both cases let go */
	PyObject *backend, *ptr, *device; /* what Python calls it */
};

extern PyTypeObject *gdr_mapping_type_object;

/* Checks that a call makes before it touches the memory; false with an exception set. */
bool gdr_mapping_usable(struct mapping *self, const char *method);
bool gdr_mapping_writable(struct mapping *self, const char *method);
bool gdr_mapping_range(struct mapping *self, const char *method, Py_ssize_t offset,
		       Py_ssize_t nbytes);

/* That bytes to be copied are not those of the range, `extent` bytes at offset. */
bool gdr_mapping_refuse_overlap(const char *method, const char *name, Py_ssize_t offset,
				Py_ssize_t extent);

static inline bool gdr_mapping_apart(struct mapping *self, const char *method, const char *name,
				     Py_ssize_t offset, Py_ssize_t extent, const void *data,
				     Py_ssize_t nbytes)
{
	return !gdr_overlap(self->address + offset, (size_t)extent, data, (size_t)nbytes) ||
	       gdr_mapping_refuse_overlap(method, name, offset, extent);
}

bool gdr_mapping_word(struct mapping *self, const char *method, Py_ssize_t offset,
		      Py_ssize_t width);

/* One aligned word of 4 or 8 bytes, in one access that the compiler cannot split or move. */
void gdr_word_store(char *address, Py_ssize_t width, uint64_t value);
uint64_t gdr_word_load(const char *address, Py_ssize_t width);

/* The word at an offset, fenced from the loads that follow. */
uint64_t gdr_mapping_load_word(struct mapping *self, Py_ssize_t offset, Py_ssize_t width);

/*
 * Copy to or from a range that was checked, and fence unless batching. Several threads copy only
 * what is worth it; long copies let other Python threads run meanwhile.
 */
void gdr_mapping_put(struct mapping *self, unsigned int threads, Py_ssize_t offset,
		     const void *data, Py_ssize_t nbytes);
void gdr_mapping_get(struct mapping *self, unsigned int threads, Py_ssize_t offset, void *data,
		     Py_ssize_t nbytes);

/* What makes a mapping out of a new object, whose fields are all zero. */
void gdr_mapping_begin(struct mapping *self, char *address, Py_ssize_t nbytes,
		       enum gdr_mapping_kind type, bool readonly, PyObject *release);
void gdr_mapping_name(struct mapping *self, PyObject *backend, PyObject *ptr, PyObject *device);

/* In memfd.c: functions of the module, Mapping._of_memfd() and Mapping._adopt_memfd(). */
PyObject *gdr_note_private(PyObject *module, PyObject *descriptor);
PyObject *gdr_close_private(PyObject *module, PyObject *descriptor);
PyObject *gdr_sealed_size(PyObject *module, PyObject *descriptor);
PyObject *gdr_map_memfd(PyObject *type, PyObject *args);
PyObject *gdr_adopt_memfd(PyObject *type, PyObject *args);

/* In transfers.c: open_dma(context). */
PyObject *gdr_open_dma(PyObject *module, PyObject *context);

/* In mapping_copies.c: methods of the same names. */
PyObject *gdr_mapping_write(struct mapping *self, PyObject *const *args, Py_ssize_t nargs,
			    PyObject *kwnames);
PyObject *gdr_mapping_read(struct mapping *self, PyObject *const *args, Py_ssize_t nargs,
			   PyObject *kwnames);
PyObject *gdr_mapping_readinto(struct mapping *self, PyObject *const *args, Py_ssize_t nargs,
			       PyObject *kwnames);
PyObject *gdr_mapping_store(struct mapping *self, PyObject *const *args, Py_ssize_t nargs,
			    PyObject *kwnames);
PyObject *gdr_mapping_load(struct mapping *self, PyObject *const *args, Py_ssize_t nargs,
			   PyObject *kwnames);

/* In write_many.c and scatter.c: Mapping.write_many() and Mapping.scatter(). */
PyObject *gdr_mapping_write_many(struct mapping *self, PyObject *iterable);
PyObject *gdr_mapping_scatter(struct mapping *self, PyObject *const *args, Py_ssize_t nargs,
			      PyObject *kwnames);

/* In strided.c: Mapping.write_strided() and Mapping.readinto_strided(). */
PyObject *gdr_mapping_write_strided(struct mapping *self, PyObject *const *args, Py_ssize_t nargs,
				    PyObject *kwnames);
PyObject *gdr_mapping_readinto_strided(struct mapping *self, PyObject *const *args,
				       Py_ssize_t nargs, PyObject *kwnames);

extern PyType_Spec gdr_mapping_spec;
extern PyType_Spec gdr_flag_spec;
extern PyType_Spec gdr_transfers_spec;

#endif
