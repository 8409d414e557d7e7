/* SPDX-License-Identifier: MIT */
/* The Transfers type in C: copies of bytes, and the parts that copies of rows need. */
#ifndef GDRPY_TRANSFERS_H
#define GDRPY_TRANSFERS_H

#include "common/wait.h"
#include "dma/dma.h"
#include "engine/engine.h"
#include "mapping.h"

enum core_way {
	CORE_AUTOMATIC,
	CORE_BY_DMA,
	CORE_BY_MAPPING,
	CORE_BY_ENGINE,
};

enum core_host {
	CORE_HOST_ORDINARY,
	CORE_HOST_PINNED,     /* page-locked by CUDA, for DMA */
	CORE_HOST_REGISTERED, /* for the engine, which may be used */
};

/*
 * Sizes in bytes from which a way is the fastest: several threads for the mapping; DMA from
 * ordinary memory, if there is no engine, and page-locked memory; the engine from ordinary memory,
 * and memory that is registered for it.
 */
struct core_limits {
	Py_ssize_t threads, dma, dma_pinned, engine, registered;
	Py_ssize_t gpu;	      /* the least of those but `threads` */
	unsigned int several; /* threads for the mapping */
};

struct transfers {
	PyObject_HEAD struct mapping *mapping; /* NULL without CPU view */
	PyObject *capsule;		       /* keeps dma */
	struct core_dma *dma;		       /* NULL without GPU view */
	PyObject *engine_capsule;	       /* keeps engine */
	struct core_engine_memory *engine;     /* NULL until it is asked for */
	int64_t engine_again;		       /* when it may be tried, after a failure */
	size_t for_engine;		       /* bytes that it would have copied faster */
	uint64_t ptr;
	Py_ssize_t nbytes;
	struct core_limits to, from; /* the region */
	unsigned int lanes;
	bool armed, writable;
	bool pin; /* else a region */
	unsigned int generation;
	Py_ssize_t running; /* copies by the GPU, during which close() refuses */
	PyObject *keep;	    /* dropped after the last of them; or NULL */
};

/* Without a view, the engine makes all copies. */
static inline bool core_transfers_has_view(const struct transfers *self)
{
	return self->mapping || self->dma;
}

/* The engine failed: other ways are taken, for good or for some seconds. */
static inline void core_transfers_avoid_engine(struct transfers *self, bool for_good)
{
	self->engine_again = for_good ? CORE_NEVER : core_now_ns() + CORE_TRY_AGAIN_NS;
}

static inline bool core_transfers_has_engine(const struct transfers *self)
{
	return self->engine && core_has_come(self->engine_again);
}

/* The name of a method in messages. */
#define CORE_TRANSFERS_METHOD(self, name) ((self)->pin ? "Pin." name : "Region." name)

/* A requested copy. Its bytes lie inside the region. */
struct core_copy {
	const char *method;
	enum core_way way;
	Py_ssize_t offset, nbytes;
	char *host;
	bool is_new; /* the call made the host memory: it is not page-locked or registered */
};

/* Each is false with an exception set. */
bool core_parse_way(const char *method, PyObject *via, enum core_way *way);
/* Arm the object for such a copy, with the views that it needs. */
bool core_transfers_ready(struct transfers *self, const char *method, bool to_write,
			  enum core_way way);
/* Whether the copy lies inside the region; false with an exception set. */
bool core_transfers_range(struct transfers *self, const struct core_copy *copy);
/*
 * Have the engine reach the memory, if it can and copies like this one have shown that it pays.
 * False with an exception set if the copy is not possible any more.
 */
bool core_transfers_try_engine(struct transfers *self, const struct core_copy *copy,
			       enum core_host host, bool to_write);
/*
 * How the GPU can reach host memory. This is looked up only for copies that are large enough for
 * it to matter: `cost` is the number of contiguous bytes that take as long to copy.
 */
enum core_host core_transfers_look(struct transfers *self, Py_ssize_t cost, const char *host,
				   size_t nbytes, bool to_write);
/* Copy by the faster way, or by the requested one: in transfer_ways.c. */
bool core_transfers_copy(struct transfers *self, const struct core_copy *copy, bool to_write);
/* How many threads stage so many bytes. */
unsigned int core_transfers_lanes(const struct transfers *self, Py_ssize_t nbytes);
/* The end of a copy by the GPU. */
void core_transfers_end(struct transfers *self);
/* Raise a failure of DMA as an exception; returns false. */
bool core_raise_cuda(const struct core_error *error);
/* Raise any failure of the core as an exception; returns NULL. */
void *core_raise_failure(const struct core_error *error);

/* In engine.c. */
/*
 * Between these the engine works on the memory, behind the stores in this CPU's buffers, and other
 * Python threads may run: one may disarm the object.
 */
struct core_use {
	PyObject *capsule;
	struct core_engine_memory *memory;
};

struct core_use core_transfers_use_engine(struct transfers *self);
void core_transfers_end_use(struct transfers *self, const struct core_use *use);
/* Copy to or from byte `start` of another region or pin, on the GPU; false with an exception set.
 */
bool core_transfers_between(struct transfers *self, struct transfers *other, Py_ssize_t start,
			    const struct core_copy *copy, bool to_write);
/* Refuse a copy of bytes over themselves; returns false. */
bool core_raise_own(const char *method);
PyObject *core_transfers_fill(struct transfers *self, PyObject *args);
extern PyTypeObject *core_transfers_type_object;
extern const char core_engine_capsule[];
PyObject *core_engine_reach(PyObject *module, PyObject *args);
PyObject *core_engine_register_buffer(PyObject *module, PyObject *buffer);
PyObject *core_engine_status(PyObject *module, PyObject *gpu);

/* In transfers_rows.c. */
PyObject *core_transfers_write_strided(struct transfers *self, CORE_PARAMETERS);
PyObject *core_transfers_readinto_strided(struct transfers *self, CORE_PARAMETERS);

/* In transfers_many.c. */
PyObject *core_transfers_write_many(struct transfers *self, CORE_PARAMETERS);
PyObject *core_transfers_readinto_many(struct transfers *self, CORE_PARAMETERS);

#endif
