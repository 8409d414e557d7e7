/* SPDX-License-Identifier: MIT */
/*
 * Mapping.write_many(): many small copies in one call, with one fence.
 *
 * Everything is checked before the first store. Python code (iterators, __index__, exporters of
 * buffers) runs before the last check of the mapping.
 */
#include "copy/pieces.h"
#include "layout.h"
#include "mapping.h"

#include <stdio.h>

#define FEW_PIECES 32
#define LABEL_BYTES 80

/* The most bytes copied while other Python threads wait: some tens of microseconds. */
#define LONGEST_LOCKED (1 << 20)

/* The pieces of a call, and the objects that keep their bytes in place. */
struct pieces {
	struct core_piece *list;
	Py_ssize_t count;
	size_t total;	   /* bytes */
	size_t first, end; /* of everything that is written */
	PyObject *pairs;   /* a tuple, which keeps bytes objects */
	Py_buffer *views;  /* of all other objects; room for `count`, NULL before the first */
	Py_ssize_t nviews;
	struct core_piece few[FEW_PIECES];
};

static const char method[] = "Mapping.write_many";

static bool begin_pieces(struct pieces *pieces, PyObject *iterable)
{
	pieces->pairs = PySequence_Tuple(iterable);
	if (!pieces->pairs)
		return false;
	pieces->count = PyTuple_Size(pieces->pairs);
	pieces->views = NULL;
	pieces->nviews = 0;
	pieces->total = 0;
	pieces->first = SIZE_MAX;
	pieces->end = 0;
	pieces->list = pieces->few;
	if (pieces->count <= FEW_PIECES)
		return true;
	pieces->list = PyMem_Malloc((size_t)pieces->count * sizeof(*pieces->list));
	if (pieces->list)
		return true;
	Py_DECREF(pieces->pairs);
	PyErr_NoMemory();
	return false;
}

static void end_pieces(struct pieces *pieces)
{
	while (pieces->nviews)
		PyBuffer_Release(&pieces->views[--pieces->nviews]);
	PyMem_Free(pieces->views);
	if (pieces->list != pieces->few)
		PyMem_Free(pieces->list);
	Py_DECREF(pieces->pairs);
}

/* "Mapping.write_many: pieces[3]", for messages. */
static const char *piece_label(char *label, Py_ssize_t i)
{
	snprintf(label, LABEL_BYTES, "%s: pieces[%zd]", method, i);
	return label;
}

static bool export_piece(struct pieces *pieces, PyObject *data, Py_ssize_t i)
{
	struct core_piece *piece = &pieces->list[i];
	char label[LABEL_BYTES];
	Py_buffer *view;

	if (!pieces->views)
		pieces->views = PyMem_Malloc((size_t)pieces->count * sizeof(*pieces->views));
	if (!pieces->views) {
		PyErr_NoMemory();
		return false;
	}
	view = &pieces->views[pieces->nviews];
	if (!core_get_view(piece_label(label, i), "data", data, 0, view))
		return false;
	pieces->nviews++;
	piece->data = view->buf;
	piece->nbytes = (size_t)view->len;
	return true;
}

static Py_ssize_t take_offset(PyObject *object, Py_ssize_t i)
{
	Py_ssize_t offset = PyNumber_AsSsize_t(object, PyExc_OverflowError);
	char label[LABEL_BYTES];

	if (offset >= 0 || (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_OverflowError) &&
			    !PyErr_ExceptionMatches(PyExc_TypeError)))
		return offset;
	PyErr_Clear();
	return core_as_size(piece_label(label, i), "offset", object, 0);
}

/* A pair of any type; only the export of its data is kept. */
static bool take_any_pair(struct pieces *pieces, PyObject *object, Py_ssize_t i)
{
	char label[LABEL_BYTES];
	PyObject *pair = PySequence_Check(object) ? PySequence_Tuple(object) : NULL;
	Py_ssize_t offset;
	bool taken;

	if (PyErr_Occurred())
		return false;
	if (!pair || PyTuple_Size(pair) != 2) {
		PyErr_Format(PyExc_TypeError, "%s must be a pair (offset, data), not %.100R",
			     piece_label(label, i), object);
		Py_XDECREF(pair);
		return false;
	}
	offset = take_offset(PyTuple_GetItem(pair, 0), i);
	taken = offset >= 0 && export_piece(pieces, PyTuple_GetItem(pair, 1), i);
	pieces->list[i].offset = (size_t)offset;
	Py_DECREF(pair);
	return taken;
}

/* The common case, a tuple of an int and bytes; the outer tuple keeps the bytes alive. */
static inline bool take_plain_pair(PyObject *pair, struct core_piece *piece)
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

/* Check the pieces and find the range from the first to the last. */
static bool take_pieces(struct mapping *self, struct pieces *pieces)
{
	char label[LABEL_BYTES];
	size_t room = (size_t)self->nbytes;
	Py_ssize_t i;

	for (i = 0; i < pieces->count; i++) {
		struct core_piece *piece = &pieces->list[i];
		PyObject *pair = core_tuple_item(pieces->pairs, i);

		if (!take_plain_pair(pair, piece) && !take_any_pair(pieces, pair, i))
			return false;
		if (piece->offset > room || piece->nbytes > room - piece->offset)
			return core_mapping_range(self, piece_label(label, i),
						  (Py_ssize_t)piece->offset,
						  (Py_ssize_t)piece->nbytes);
		pieces->total += piece->nbytes;
		if (piece->offset < pieces->first)
			pieces->first = piece->offset;
		if (piece->offset + piece->nbytes > pieces->end)
			pieces->end = piece->offset + piece->nbytes;
	}
	return true;
}

/*
 * Everything from the first to the last piece counts as written. Bytes objects do not lie in the
 * mapping, so nothing is checked without views.
 */
static bool check_apart(struct mapping *self, const struct pieces *pieces)
{
	size_t extent = pieces->end - pieces->first;
	char label[LABEL_BYTES];

	for (Py_ssize_t i = 0; pieces->nviews && i < pieces->count; i++) {
		const struct core_piece *piece = &pieces->list[i];

		if (core_overlap(self->address + pieces->first, extent, piece->data, piece->nbytes))
			return core_mapping_refuse_overlap(piece_label(label, i), "data",
							   (Py_ssize_t)pieces->first,
							   (Py_ssize_t)extent);
	}
	return true;
}

static void put_pieces(struct mapping *self, const struct core_piece *pieces, Py_ssize_t count)
{
	core_put_pieces(self->type, self->address, pieces, (size_t)count);
	core_mapping_fence(self);
}

#ifndef Py_GIL_DISABLED
/*
 * The fastest way for the most frequent argument, a list of plain pairs. No other code runs, so
 * they need not be kept alive. False, with nothing stored, for other arguments and for errors.
 */
static bool put_plain_list(struct mapping *self, PyObject *list)
{
	Py_ssize_t count = PyList_Size(list);
	size_t room = (size_t)self->nbytes, total = 0;
	struct core_piece few[FEW_PIECES], *pieces = few;
	Py_ssize_t i;

	if (count > FEW_PIECES)
		pieces = PyMem_Malloc((size_t)count * sizeof(*pieces));
	if (!pieces)
		return false;
	for (i = 0; i < count; i++) {
		struct core_piece *piece = &pieces[i];

		if (!take_plain_pair(core_list_item(list, i), piece) || piece->offset > room ||
		    piece->nbytes > room - piece->offset)
			break;
		total += piece->nbytes;
		if (total >= LONGEST_LOCKED)
			break;
	}
	if (i == count)
		put_pieces(self, pieces, count);
	if (pieces != few)
		PyMem_Free(pieces);
	return i == count;
}
#endif

PyObject *core_mapping_write_many(struct mapping *self, PyObject *iterable)
{
	PyThreadState *thread;
	struct pieces pieces;
	bool good;

	if (!core_mapping_writable(self, method))
		return NULL;
#ifndef Py_GIL_DISABLED
	if (PyList_CheckExact(iterable) && put_plain_list(self, iterable))
		Py_RETURN_NONE;
#endif
	if (!begin_pieces(&pieces, iterable))
		return NULL;
	good = take_pieces(self, &pieces) && core_mapping_enter(self, method);
	if (good) {
		good = check_apart(self, &pieces);
		if (good) {
			thread = core_mapping_unlock(self, pieces.total >= CORE_UNLOCKED_WRITE);
			put_pieces(self, pieces.list, pieces.count);
			core_mapping_relock(self, thread);
		}
		core_mapping_leave(self);
	}
	end_pieces(&pieces);
	if (!good)
		return NULL;
	Py_RETURN_NONE;
}
