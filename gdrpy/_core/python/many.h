/* SPDX-License-Identifier: MIT */
/* Pieces of host memory with their offsets, from pairs of Python objects. */
#ifndef GDRPY_MANY_H
#define GDRPY_MANY_H

#include "copy/pieces.h"
#include "layout.h"
#include "mapping.h"

#define CORE_FEW_PIECES 32
#define CORE_LABEL_BYTES 80

/* The pieces of a call, and the objects that keep their bytes in place. */
struct core_pieces {
	struct core_piece *list;
	Py_ssize_t count;
	const char *name;  /* of a buffer, in messages */
	size_t total;	   /* bytes */
	size_t first, end; /* of everything that is copied */
	PyObject *pairs;   /* a tuple, which keeps bytes objects */
	Py_buffer *views;  /* of all other objects; room for `count`, NULL before the first */
	Py_ssize_t nviews;
	struct core_piece few[CORE_FEW_PIECES];
};

/*
 * Take pieces from an iterable of pairs (offset, buffer), until core_end_pieces(); false with an
 * exception set.
 */
bool core_take_pieces(struct core_pieces *pieces, const char *method, PyObject *iterable,
		      bool writable);
void core_end_pieces(struct core_pieces *pieces);

/* Find their total, first and end; returns the index of the first that lies outside, or count. */
Py_ssize_t core_measure_pieces(struct core_pieces *pieces, size_t room);

/* "Mapping.write_many: pieces[3]", for messages, in a place of CORE_LABEL_BYTES. */
const char *core_piece_label(char *label, const char *method, Py_ssize_t i);

/*
 * Whether no piece lies in the mapping between the first and the last byte that is copied; false
 * with an exception set.
 */
bool core_pieces_apart(const struct core_pieces *pieces, const char *method,
		       struct mapping *mapping);

/*
 * Store checked pieces to an entered mapping, and fence. If it takes long, other Python threads run
 * meanwhile.
 */
void core_mapping_put_many(struct mapping *self, const struct core_piece *pieces, Py_ssize_t count,
			   bool takes_long);

/* The common case, a tuple of an int and bytes; the tuple keeps the bytes alive. */
static inline bool core_take_plain_pair(PyObject *pair, struct core_piece *piece)
{
	PyObject *offset, *data;
	Py_ssize_t value;

	if (Py_TYPE(pair) != &PyTuple_Type || Py_SIZE(pair) != 2)
		return false;
	offset = core_tuple_item(pair, 0);
	data = core_tuple_item(pair, 1);
	if (Py_TYPE(offset) != &PyLong_Type || Py_TYPE(data) != &PyBytes_Type)
		return false;
	value = PyLong_AsSsize_t(offset);
	if (value < 0) {
		PyErr_Clear();
		return false;
	}
	piece->offset = (size_t)value;
	piece->data = core_bytes_data(data);
	piece->nbytes = (size_t)Py_SIZE(data);
	return true;
}

#endif
