/* SPDX-License-Identifier: MIT */
#include "many.h"

#include <string.h>

/* Made for each piece, because its exporter may raise: snprintf() would take most of the time. */
const char *core_piece_label(char *label, const char *method, Py_ssize_t i)
{
	char *end = label + CORE_LABEL_BYTES, *at = end;
	const size_t nbytes = strlen(method);

	*--at = 0;
	*--at = ']';
	do {
		*--at = (char)('0' + i % 10);
	} while (i /= 10);
	at -= strlen(": pieces[");
	memcpy(at, ": pieces[", strlen(": pieces["));
	return memcpy(at - nbytes, method, nbytes);
}

static bool export_piece(struct core_pieces *pieces, const char *label, PyObject *data,
			 struct core_piece *piece, bool writable)
{
	Py_buffer *view;

	if (!pieces->views)
		pieces->views = PyMem_Malloc((size_t)pieces->count * sizeof(*pieces->views));
	if (!pieces->views) {
		PyErr_NoMemory();
		return false;
	}
	view = &pieces->views[pieces->nviews];
	if (!core_get_view(label, pieces->name, data, writable ? PyBUF_WRITABLE : 0, view))
		return false;
	pieces->nviews++;
	piece->data = view->buf;
	piece->nbytes = (size_t)view->len;
	return true;
}

static Py_ssize_t take_offset(const char *label, PyObject *object)
{
	Py_ssize_t offset = PyNumber_AsSsize_t(object, PyExc_OverflowError);

	if (offset >= 0 || (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_OverflowError) &&
			    !PyErr_ExceptionMatches(PyExc_TypeError)))
		return offset;
	PyErr_Clear();
	return core_as_size(label, "offset", object, 0);
}

/* A pair of any type; only the export of its data is kept. */
static bool take_any_pair(struct core_pieces *pieces, const char *label, PyObject *object,
			  struct core_piece *piece, bool writable)
{
	PyObject *pair = PySequence_Check(object) ? PySequence_Tuple(object) : NULL;
	Py_ssize_t offset;
	bool taken;

	if (PyErr_Occurred())
		return false;
	if (!pair || PyTuple_Size(pair) != 2) {
		PyErr_Format(PyExc_TypeError, "%s must be a pair (offset, %s), not %.100R", label,
			     pieces->name, object);
		Py_XDECREF(pair);
		return false;
	}
	offset = take_offset(label, PyTuple_GetItem(pair, 0));
	taken = offset >= 0 &&
		export_piece(pieces, label, PyTuple_GetItem(pair, 1), piece, writable);
	piece->offset = (size_t)offset;
	Py_DECREF(pair);
	return taken;
}

bool core_take_pieces(struct core_pieces *pieces, const char *method, PyObject *iterable,
		      bool writable)
{
	char label[CORE_LABEL_BYTES];

	pieces->pairs = PySequence_Tuple(iterable);
	if (!pieces->pairs)
		return false;
	pieces->count = PyTuple_Size(pieces->pairs);
	pieces->name = writable ? "buffer" : "data";
	pieces->views = NULL;
	pieces->nviews = 0;
	pieces->total = 0;
	pieces->list = pieces->few;
	if (pieces->count > CORE_FEW_PIECES)
		pieces->list = PyMem_Malloc((size_t)pieces->count * sizeof(*pieces->list));
	if (!pieces->list) {
		Py_DECREF(pieces->pairs);
		PyErr_NoMemory();
		return false;
	}
	for (Py_ssize_t i = 0; i < pieces->count; i++) {
		PyObject *pair = core_tuple_item(pieces->pairs, i);

		if ((writable || !core_take_plain_pair(pair, &pieces->list[i])) &&
		    !take_any_pair(pieces, core_piece_label(label, method, i), pair,
				   &pieces->list[i], writable)) {
			core_end_pieces(pieces);
			return false;
		}
	}
	return true;
}

void core_end_pieces(struct core_pieces *pieces)
{
	while (pieces->nviews)
		PyBuffer_Release(&pieces->views[--pieces->nviews]);
	PyMem_Free(pieces->views);
	if (pieces->list != pieces->few)
		PyMem_Free(pieces->list);
	Py_DECREF(pieces->pairs);
}

Py_ssize_t core_measure_pieces(struct core_pieces *pieces, size_t room)
{
	Py_ssize_t i;

	pieces->total = pieces->end = 0;
	pieces->first = SIZE_MAX;
	for (i = 0; i < pieces->count; i++) {
		const struct core_piece *piece = &pieces->list[i];

		if (piece->offset > room || piece->nbytes > room - piece->offset)
			break;
		pieces->total += piece->nbytes;
		if (piece->offset < pieces->first)
			pieces->first = piece->offset;
		if (piece->offset + piece->nbytes > pieces->end)
			pieces->end = piece->offset + piece->nbytes;
	}
	return i;
}

/* Bytes objects do not lie in a mapping, so nothing is checked without views. */
bool core_pieces_apart(const struct core_pieces *pieces, const char *method,
		       struct mapping *mapping)
{
	const size_t extent = pieces->end - pieces->first;
	char label[CORE_LABEL_BYTES];

	for (Py_ssize_t i = 0; pieces->nviews && i < pieces->count; i++) {
		const struct core_piece *piece = &pieces->list[i];

		if (core_overlap(mapping->address + pieces->first, extent, piece->data,
				 piece->nbytes))
			return core_mapping_refuse_overlap(core_piece_label(label, method, i),
							   pieces->name, (Py_ssize_t)pieces->first,
							   (Py_ssize_t)extent);
	}
	return true;
}

void core_mapping_put_many(struct mapping *self, const struct core_piece *pieces, Py_ssize_t count,
			   bool takes_long)
{
	PyThreadState *thread = core_mapping_unlock(self, takes_long);

	core_put_pieces(self->type, self->address, pieces, (size_t)count);
	core_mapping_fence(self);
	core_mapping_relock(self, thread);
}
