/* SPDX-License-Identifier: MIT */
/* The Transfers type in C: copies of bytes, and the parts that copies of rows need. */
#ifndef GDRPY_TRANSFERS_H
#define GDRPY_TRANSFERS_H

#include "dma/dma.h"
#include "engine/engine.h"
#include "mapping.h"

enum core_way {
	CORE_AUTOMATIC,
	CORE_BY_DMA,
	CORE_BY_MAPPING,
	CORE_BY_ENGINE,
};

/* Sizes in bytes from which a way is the faster one, and how many threads it uses. */
struct core_limits {
	Py_ssize_t write_threads, write_dma, write_dma_pinned, read_threads, read_dma;
	unsigned int threads_to, threads_from, lanes;
};

struct transfers {
	PyObject_HEAD struct mapping *mapping; /* NULL without CPU view */
	PyObject *capsule;		       /* keeps dma */
	struct core_dma *dma;		       /* NULL without GPU view */
	PyObject *engine_capsule;	       /* keeps engine */
	struct core_engine_memory *engine;     /* NULL until it is asked for */
	uint64_t ptr;
	Py_ssize_t nbytes;
	struct core_limits limits;
	bool armed, writable;
	bool pin; /* else a region */
	unsigned int generation;
	Py_ssize_t running; /* copies by the GPU, during which close() refuses */
	PyObject *keep;	    /* dropped after the last of them; or NULL */
};

/* The name of a method in messages. */
#define CORE_TRANSFERS_METHOD(self, name) ((self)->pin ? "Pin." name : "Region." name)

/* A requested copy. Its bytes lie inside the region. */
struct core_copy {
	const char *method;
	enum core_way way;
	Py_ssize_t offset, nbytes;
	char *host;
};

/* Each is false with an exception set. */
bool core_parse_way(const char *method, PyObject *via, enum core_way *way);
/* Arm the object for such a copy, with the views that it needs. */
bool core_transfers_ready(struct transfers *self, const char *method, bool to_write,
			  enum core_way way);
/* Whether the copy lies inside the region; false with an exception set. */
bool core_transfers_range(struct transfers *self, const struct core_copy *copy);
/* Copy by the faster way, or by the requested one: in transfer_ways.c. */
bool core_transfers_copy(struct transfers *self, const struct core_copy *copy, bool to_write);
/* The end of a copy by the GPU. */
void core_transfers_end(struct transfers *self);
/* Raise a failure of DMA as an exception; returns false. */
bool core_raise_cuda(const struct core_error *error);
/* Raise any failure of the core as an exception; returns false. */
bool core_raise_failure(const struct core_error *error);

/* In engine.c. */
/* Copy between the GPU memory of two regions or pins; false with an exception set. */
bool core_transfers_between(struct transfers *self, struct transfers *other,
			    const struct core_copy *copy, bool to_write);
PyObject *core_transfers_fill(struct transfers *self, PyObject *args);
extern PyTypeObject *core_transfers_type_object;
extern const char core_engine_capsule[];
PyObject *core_engine_reach(PyObject *module, PyObject *args);
PyObject *core_engine_register_buffer(PyObject *module, PyObject *buffer);
PyObject *core_engine_status(PyObject *module, PyObject *gpu);

/* In transfers_rows.c. */
PyObject *core_transfers_write_strided(struct transfers *self, PyObject *const *args,
				       Py_ssize_t nargs, PyObject *kwnames);
PyObject *core_transfers_readinto_strided(struct transfers *self, PyObject *const *args,
					  Py_ssize_t nargs, PyObject *kwnames);

#endif
