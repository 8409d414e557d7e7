/* SPDX-License-Identifier: MIT */
/*
 * Mapping.write_many() and Mapping.scatter(): many small copies in one call, with one fence.
 *
 * Everything is checked before the first store. What can run Python code (iterators, __index__,
 * exporters of buffers) runs before that too, and is over when the mapping is looked at last.
 */
#include "copy_pieces.h"
#include "mapping.h"

#include <stdio.h>
#include <string.h>

#define FEW_PIECES 32
#define LABEL_BYTES 80

/* The pieces of a call, and what keeps their bytes where they are. */
struct pieces {
	struct gdr_piece *list;
	Py_ssize_t count;
	bool is_small;	  /* all together */
	PyObject *pairs;  /* a tuple, which keeps bytes objects */
	Py_buffer *views; /* of all other objects; room for `count`, NULL before the first */
	Py_ssize_t nviews;
	size_t bytes_header; /* before the data in every object of type bytes */
	struct gdr_piece few[FEW_PIECES];
};

static const char write_many[] = "Mapping.write_many";
static const char scatter[] = "Mapping.scatter";

static bool begin_pieces(struct pieces *pieces, PyObject *iterable)
{
	PyObject *no_bytes = PyBytes_FromStringAndSize(NULL, 0);

	if (!no_bytes)
		return false;
	/* Found out once: to ask each object by PyBytes_AsString() is a fifth of all the work. */
	pieces->bytes_header = (size_t)(PyBytes_AsString(no_bytes) - (char *)no_bytes);
	Py_DECREF(no_bytes);

	pieces->pairs = PySequence_Tuple(iterable);
	if (!pieces->pairs)
		return false;
	pieces->count = PyTuple_Size(pieces->pairs);
	pieces->views = NULL;
	pieces->nviews = 0;
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
	snprintf(label, LABEL_BYTES, "%s: pieces[%zd]", write_many, i);
	return label;
}

static bool export_piece(struct pieces *pieces, PyObject *data, Py_ssize_t i)
{
	struct gdr_piece *piece = &pieces->list[i];
	char label[LABEL_BYTES];
	Py_buffer *view;

	if (!PyObject_CheckBuffer(data)) {
		PyErr_Format(PyExc_TypeError, "%s: data must be a buffer, and is %.100R",
			     piece_label(label, i), data);
		return false;
	}
	if (!pieces->views)
		pieces->views = PyMem_Malloc((size_t)pieces->count * sizeof(*pieces->views));
	if (!pieces->views) {
		PyErr_NoMemory();
		return false;
	}
	view = &pieces->views[pieces->nviews];
	if (PyObject_GetBuffer(data, view, PyBUF_SIMPLE))
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

	if (offset >= 0)
		return offset;
	PyErr_Clear();
	return gdr_as_size(piece_label(label, i), "offset", object, 0);
}

/* A pair of any type, of which nothing is kept but the export of its data. */
static bool take_any_pair(struct pieces *pieces, PyObject *object, Py_ssize_t i)
{
	char label[LABEL_BYTES];
	PyObject *pair = PySequence_Check(object) ? PySequence_Tuple(object) : NULL;
	Py_ssize_t offset;
	bool taken;

	if (PyErr_Occurred())
		return false;
	if (!pair || PyTuple_Size(pair) != 2) {
		PyErr_Format(PyExc_TypeError, "%s must be a pair (offset, data), and is %.100R",
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

/* The common case, a tuple of an int and bytes, whose outer tuple keeps the bytes. */
static inline bool take_plain_pair(PyObject *pair, size_t bytes_header, struct gdr_piece *piece)
{
	PyObject *offset, *data;
	Py_ssize_t value;

	if (Py_TYPE(pair) != &PyTuple_Type || Py_SIZE(pair) != 2)
		return false;
	offset = PyTuple_GetItem(pair, 0);
	data = PyTuple_GetItem(pair, 1);
	if (Py_TYPE(offset) != &PyLong_Type || Py_TYPE(data) != &PyBytes_Type)
		return false;
	value = PyLong_AsSsize_t(offset);
	if (value < 0) {
		PyErr_Clear();
		return false;
	}
	piece->offset = (size_t)value;
	piece->data = (const char *)data + bytes_header;
	piece->nbytes = (size_t)Py_SIZE(data);
	return true;
}

static bool take_pieces(struct mapping *self, struct pieces *pieces)
{
	char label[LABEL_BYTES];
	size_t room = (size_t)self->nbytes, total = 0;
	Py_ssize_t i;

	for (i = 0; i < pieces->count; i++) {
		struct gdr_piece *piece = &pieces->list[i];
		PyObject *pair = PyTuple_GetItem(pieces->pairs, i);

		if (!take_plain_pair(pair, pieces->bytes_header, piece) &&
		    !take_any_pair(pieces, pair, i))
			return false;
		if (piece->offset > room || piece->nbytes > room - piece->offset)
			return gdr_mapping_range(self, piece_label(label, i),
						 (Py_ssize_t)piece->offset,
						 (Py_ssize_t)piece->nbytes);
		total += piece->nbytes;
	}
	pieces->is_small = total < GDR_UNLOCKED_WRITE;
	return true;
}

static void put_pieces(struct mapping *self, const struct pieces *pieces)
{
	gdr_put_pieces(self->type, self->address, pieces->list, (size_t)pieces->count);
	if (!self->batch)
		gdr_store_fence();
}

PyObject *gdr_mapping_write_many(struct mapping *self, PyObject *iterable)
{
	struct pieces pieces;
	bool good;

	if (!gdr_mapping_writable(self, write_many) || !begin_pieces(&pieces, iterable))
		return NULL;
	good = take_pieces(self, &pieces) && gdr_mapping_usable(self, write_many);
	if (good && pieces.is_small) {
		put_pieces(self, &pieces);
	} else if (good) {
		self->users++;
		Py_BEGIN_ALLOW_THREADS put_pieces(self, &pieces);
		Py_END_ALLOW_THREADS self->users--;
	}
	end_pieces(&pieces);
	if (!good)
		return NULL;
	Py_RETURN_NONE;
}

static bool holds_int64(const Py_buffer *view)
{
	return view->ndim == 1 && view->itemsize == sizeof(int64_t) && view->format &&
	       (!strcmp(view->format, "l") || !strcmp(view->format, "q"));
}

static bool is_refusal(void)
{
	return PyErr_ExceptionMatches(PyExc_BufferError) ||
	       PyErr_ExceptionMatches(PyExc_ValueError) || PyErr_ExceptionMatches(PyExc_TypeError);
}

/* Contiguous int64 of one dimension: as they are if they are that, else what numpy makes of them.
 */
static bool export_offsets(PyObject *object, Py_buffer *view)
{
	PyObject *module, *array;
	int failed;

	if (PyObject_CheckBuffer(object)) {
		if (!PyObject_GetBuffer(object, view, PyBUF_ND | PyBUF_FORMAT)) {
			if (holds_int64(view))
				return true;
			PyBuffer_Release(view);
		} else if (!is_refusal()) {
			return false;
		}
		PyErr_Clear();
	}
	module = PyImport_ImportModule("gdrpy._arguments");
	if (!module)
		return false;
	array = PyObject_CallMethod(module, "as_offsets", "sO", scatter, object);
	Py_DECREF(module);
	if (!array)
		return false;
	failed = PyObject_GetBuffer(array, view, PyBUF_ND);
	Py_DECREF(array);
	return !failed;
}

static bool check_records(struct mapping *self, const struct gdr_records *records, int64_t last)
{
	size_t outside = gdr_first_outside(records, last);
	char label[LABEL_BYTES];
	Py_ssize_t offset;

	if (outside == records->count)
		return true;
	offset = records->offsets[outside];
	snprintf(label, sizeof(label), "%s: offsets[%zu]", scatter, outside);
	if (offset < 0)
		PyErr_Format(PyExc_ValueError, "%s must not be negative, and is %zd", label,
			     offset);
	else
		PyErr_Format(PyExc_ValueError,
			     "%s: offset %zd + %zu bytes lies outside the %zd-byte mapping", label,
			     offset, records->nbytes, self->nbytes);
	return false;
}

static size_t put_records(struct mapping *self, const struct gdr_records *records, int64_t last)
{
	size_t count = gdr_put_records(self->type, self->address, records, last);

	if (!self->batch)
		gdr_store_fence();
	return count;
}

static bool scatter_records(struct mapping *self, const Py_buffer *offsets, const Py_buffer *data)
{
	Py_ssize_t count = data->ndim ? data->shape[0] : -1;
	struct gdr_records records = {
		.offsets = offsets->buf,
		.records = data->buf,
		.nbytes = count > 0 ? (size_t)(data->len / count) : 0,
		.count = (size_t)offsets->shape[0],
	};
	int64_t last = self->nbytes - (int64_t)records.nbytes;
	size_t put;

	if (count != offsets->shape[0]) {
		PyErr_Format(PyExc_ValueError,
			     "%s: there are %zd offsets: records must be an array of as many, one "
			     "for each element of its first dimension, which has %zd",
			     scatter, offsets->shape[0], count < 0 ? 0 : count);
		return false;
	}
	if (!check_records(self, &records, last))
		return false;

	if (data->len < GDR_UNLOCKED_WRITE) {
		put = put_records(self, &records, last);
	} else {
		self->users++;
		Py_BEGIN_ALLOW_THREADS put = put_records(self, &records, last);
		Py_END_ALLOW_THREADS self->users--;
	}
	if (put == records.count)
		return true;
	PyErr_Format(PyExc_RuntimeError, "%s: offsets[%zu] was changed during the call", scatter,
		     put);
	return false;
}

PyObject *gdr_mapping_scatter(struct mapping *self, PyObject *const *args, Py_ssize_t nargs,
			      PyObject *kwnames)
{
	static const char *const names[] = {"offsets", "records", NULL};
	Py_buffer offsets, records;
	PyObject *arg[2];
	bool good;

	if (!gdr_parse(scatter, args, nargs, kwnames, names, 2, arg) ||
	    !gdr_mapping_writable(self, scatter) || !export_offsets(arg[0], &offsets))
		return NULL;
	if (PyObject_GetBuffer(arg[1], &records, PyBUF_ND)) {
		PyBuffer_Release(&offsets);
		return NULL;
	}
	good = gdr_mapping_usable(self, scatter) && scatter_records(self, &offsets, &records);
	PyBuffer_Release(&records);
	PyBuffer_Release(&offsets);
	if (!good)
		return NULL;
	Py_RETURN_NONE;
}
