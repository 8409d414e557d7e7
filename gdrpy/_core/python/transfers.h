/* SPDX-License-Identifier: MIT */
/* The Transfers type's C side: copies of bytes, and what copies of rows need of it. */
#ifndef GDRPY_TRANSFERS_H
#define GDRPY_TRANSFERS_H

#include "dma/dma.h"
#include "mapping.h"

enum gdr_way {
	GDR_AUTOMATIC,
	GDR_BY_MAPPING,
	GDR_BY_DMA
};

/* Sizes in bytes from which a way is the faster one, and how many threads it takes. */
struct gdr_limits {
	Py_ssize_t write_threads, write_dma, write_dma_pinned, read_threads, read_dma;
	unsigned int threads_to, threads_from, lanes;
};

struct transfers {
	PyObject_HEAD struct mapping *mapping; /* NULL without CPU view */
	PyObject *capsule;		       /* keeps dma */
	struct gdr_dma *dma;		       /* NULL without GPU view */
	uint64_t ptr;
	Py_ssize_t nbytes;
	struct gdr_limits limits;
	bool armed, writable;
	bool pin; /* else a region */
	unsigned int generation;
	Py_ssize_t running; /* copies by DMA, which close() waits for */
};

/* What a method is called in messages. */
#define GDR_TRANSFERS_METHOD(self, name) ((self)->pin ? "Pin." name : "Region." name)

/* A copy that was asked for: its bytes lie inside the region. */
struct gdr_copy {
	const char *method;
	enum gdr_way way;
	Py_ssize_t offset, nbytes;
	char *host;
};

/* Each is false with an exception set. */
bool gdr_parse_way(const char *method, PyObject *via, enum gdr_way *way);
/* Armed for such a copy, with what it needs. */
bool gdr_transfers_ready(struct transfers *self, const char *method, bool to_write,
			 enum gdr_way way);
/* By the faster way, or the one asked for: in transfer_ways.c. */
bool gdr_transfers_copy(struct transfers *self, const struct gdr_copy *copy, bool to_write);
/* What DMA refused, as an exception; returns false. */
bool gdr_raise_cuda(const struct gdr_error *error);

/* In transfers_rows.c. */
PyObject *gdr_transfers_write_strided(struct transfers *self, PyObject *const *args,
				      Py_ssize_t nargs, PyObject *kwnames);
PyObject *gdr_transfers_readinto_strided(struct transfers *self, PyObject *const *args,
					 Py_ssize_t nargs, PyObject *kwnames);

#endif
