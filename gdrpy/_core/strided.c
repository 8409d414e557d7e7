/* SPDX-License-Identifier: MIT */
/* Mapping.write_strided() and Mapping.readinto_strided(): arrays to and from rows a pitch apart. */
#include "copy_rows.h"
#include "mapping.h"

/* What a call is about: the array that it was given, and where its rows lie in the mapping. */
struct strided {
	const char *method;
	Py_ssize_t pitch, offset;
	Py_buffer view;
	Py_ssize_t extent; /* bytes of the mapping from the first row to the end of the last */
	struct gdr_rows rows;
};

/* Of a C-contiguous array, for exporters that leave them out. */
static const Py_ssize_t *strides_of(const Py_buffer *view, Py_ssize_t *contiguous)
{
	Py_ssize_t step = view->itemsize;

	if (view->strides)
		return view->strides;
	for (int d = view->ndim - 1; d >= 0; d--) {
		contiguous[d] = step;
		step *= view->shape[d];
	}
	return contiguous;
}

static bool check_rows(struct mapping *self, struct strided *call)
{
	const Py_buffer *view = &call->view;
	Py_ssize_t contiguous[GDR_MAX_NDIM], count, nbytes, end;

	if (view->ndim < 1 || view->ndim > GDR_MAX_NDIM) {
		PyErr_Format(PyExc_ValueError, "%s: the array has %d dimensions, and needs 1 to %d",
			     call->method, view->ndim, GDR_MAX_NDIM);
		return false;
	}
	count = view->shape[0];
	nbytes = view->len ? view->len / count : 0;
	if (call->pitch < nbytes) {
		PyErr_Format(PyExc_ValueError,
			     "%s: pitch must be at least the %zd bytes of a row, and is %zd",
			     call->method, nbytes, call->pitch);
		return false;
	}
	call->extent = 0;
	if (view->len && (__builtin_mul_overflow(count - 1, call->pitch, &call->extent) ||
			  __builtin_add_overflow(call->extent, nbytes, &call->extent)))
		call->extent = PY_SSIZE_T_MAX;
	if (__builtin_add_overflow(call->offset, call->extent, &end) || end > self->nbytes) {
		PyErr_Format(PyExc_ValueError,
			     "%s: offset %zd + %zd rows of %zd bytes, each %zd after the one "
			     "before, lie outside the %zd-byte mapping",
			     call->method, call->offset, count, nbytes, call->pitch, self->nbytes);
		return false;
	}
	if (view->len)
		gdr_describe_rows(&call->rows, view->buf, (size_t)view->itemsize, view->ndim,
				  view->shape, strides_of(view, contiguous), (size_t)call->pitch);
	return true;
}

/* The arguments but the array itself, which is returned; NULL with an exception set. */
static PyObject *parse_strided(struct strided *call, const char *const *names,
			       PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
	PyObject *arg[3];

	if (!gdr_parse(call->method, args, nargs, kwnames, names, 2, arg))
		return NULL;
	call->pitch = gdr_as_size(call->method, "pitch", arg[1], 0);
	if (call->pitch < 0)
		return NULL;
	call->offset = gdr_as_size(call->method, "offset", arg[2], 0);
	return call->offset < 0 ? NULL : arg[0];
}

static void put_rows(struct mapping *self, const struct strided *call)
{
	if (call->view.len)
		gdr_put_rows(self->type, self->address + call->offset, &call->rows);
	if (!self->batch)
		gdr_store_fence();
}

PyObject *gdr_mapping_write_strided(struct mapping *self, PyObject *const *args, Py_ssize_t nargs,
				    PyObject *kwnames)
{
	static const char *const names[] = {"data", "pitch", "offset", NULL};
	struct strided call = {.method = "Mapping.write_strided"};
	PyObject *data = parse_strided(&call, names, args, nargs, kwnames);
	bool good;

	if (!data || !gdr_mapping_writable(self, call.method) ||
	    PyObject_GetBuffer(data, &call.view, PyBUF_STRIDES))
		return NULL;
	good = gdr_mapping_usable(self, call.method) && check_rows(self, &call);
	if (good && call.view.len < GDR_UNLOCKED_WRITE) {
		put_rows(self, &call);
	} else if (good) {
		self->users++;
		Py_BEGIN_ALLOW_THREADS put_rows(self, &call);
		Py_END_ALLOW_THREADS self->users--;
	}
	PyBuffer_Release(&call.view);
	if (!good)
		return NULL;
	Py_RETURN_NONE;
}

PyObject *gdr_mapping_readinto_strided(struct mapping *self, PyObject *const *args,
				       Py_ssize_t nargs, PyObject *kwnames)
{
	static const char *const names[] = {"buffer", "pitch", "offset", NULL};
	struct strided call = {.method = "Mapping.readinto_strided"};
	PyObject *buffer = parse_strided(&call, names, args, nargs, kwnames);
	Py_ssize_t nbytes;
	bool good;

	if (!buffer || PyObject_GetBuffer(buffer, &call.view, PyBUF_STRIDES | PyBUF_WRITABLE))
		return NULL;
	nbytes = call.view.len;
	good = gdr_mapping_usable(self, call.method) && check_rows(self, &call);
	if (good && nbytes) {
		const char *from = self->address + call.offset;

		if (call.extent < GDR_UNLOCKED_READ) {
			gdr_get_rows(self->type, from, &call.rows);
		} else {
			self->users++;
			Py_BEGIN_ALLOW_THREADS gdr_get_rows(self->type, from, &call.rows);
			Py_END_ALLOW_THREADS self->users--;
		}
	}
	PyBuffer_Release(&call.view);
	return good ? PyLong_FromSsize_t(nbytes) : NULL;
}
