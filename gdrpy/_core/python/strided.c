/* SPDX-License-Identifier: MIT */
/* Mapping.write_strided() and Mapping.readinto_strided(): arrays to and from rows a pitch apart. */
#include "strided.h"

/* Exporters of C-contiguous arrays may leave the strides out. */
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

/* Whether the array, from its lowest to its highest byte, does not overlap the rows. */
static bool is_apart(const struct core_strided *call, struct mapping *mapping)
{
	const Py_buffer *view = &call->view;
	Py_ssize_t contiguous[CORE_MAX_NDIM];
	const Py_ssize_t *strides = strides_of(view, contiguous);
	char *first = view->buf, *end = first + view->itemsize;

	for (int d = 0; d < view->ndim; d++) {
		Py_ssize_t reach = (view->shape[d] - 1) * strides[d];

		*(reach < 0 ? &first : &end) += reach;
	}
	return core_mapping_apart(mapping, call->method, "the array", call->offset, call->extent,
				  first, end - first);
}

bool core_check_strided(struct core_strided *call, struct mapping *mapping, Py_ssize_t room)
{
	const Py_buffer *view = &call->view;
	Py_ssize_t contiguous[CORE_MAX_NDIM], count, nbytes, end;

	if (view->ndim < 1 || view->ndim > CORE_MAX_NDIM)
		return core_raise(PyExc_ValueError,
				  "%s: the array has %d dimensions, and needs 1 to %d",
				  call->method, view->ndim, CORE_MAX_NDIM);
	count = view->shape[0];
	nbytes = view->len ? view->len / count : 0;
	if (call->pitch < nbytes)
		return core_raise(PyExc_ValueError,
				  "%s: pitch must be at least the %zd bytes of a row, not %zd",
				  call->method, nbytes, call->pitch);
	call->extent = 0;
	if (view->len && (__builtin_mul_overflow(count - 1, call->pitch, &call->extent) ||
			  __builtin_add_overflow(call->extent, nbytes, &call->extent)))
		call->extent = PY_SSIZE_T_MAX;
	if (__builtin_add_overflow(call->offset, call->extent, &end) || end > room)
		return core_raise(PyExc_ValueError,
				  "%s: offset %zd + %zd rows of %zd bytes, each %zd after the one "
				  "before, lie outside the %zd bytes there are",
				  call->method, call->offset, count, nbytes, call->pitch, room);
	if (view->len && mapping && !is_apart(call, mapping))
		return false;
	if (view->len)
		core_describe_rows(&call->rows, view->buf, (size_t)view->itemsize, view->ndim,
				   view->shape, strides_of(view, contiguous), (size_t)call->pitch);
	return true;
}

bool core_parse_strided(struct core_strided *call, PyObject *pitch, PyObject *offset)
{
	call->pitch = core_as_size(call->method, "pitch", pitch, 0);
	if (call->pitch < 0)
		return false;
	call->offset = core_as_size(call->method, "offset", offset, 0);
	return call->offset >= 0;
}

void core_mapping_copy_strided(struct mapping *self, const struct core_strided *call, bool to_write)
{
	char *rows = self->address + call->offset;
	PyThreadState *thread =
		core_mapping_unlock(self, to_write ? call->view.len >= CORE_UNLOCKED_WRITE
						   : call->extent >= CORE_UNLOCKED_READ);

	if (call->view.len && to_write)
		core_put_rows(self->type, rows, &call->rows);
	else if (call->view.len)
		core_get_rows(self->type, rows, &call->rows);
	if (to_write)
		core_mapping_fence(self);
	core_mapping_relock(self, thread);
}

/* (buffer, pitch, offset=0). */
static PyObject *copy_array(struct mapping *self, const char *method, bool to_write,
			    CORE_PARAMETERS)
{
	const char *const names[] = {to_write ? "data" : "buffer", "pitch", "offset", NULL};
	struct core_strided call = {.method = method};
	Py_ssize_t nbytes;
	PyObject *arg[3];
	bool good = false;

	if (!core_parse(method, CORE_ARGUMENTS, names, 2, arg) ||
	    !core_parse_strided(&call, arg[1], arg[2]) ||
	    (to_write && !core_mapping_writable(self, method)) ||
	    !core_get_view(method, names[0], arg[0],
			   to_write ? PyBUF_STRIDES : PyBUF_STRIDES | PyBUF_WRITABLE, &call.view))
		return NULL;
	nbytes = call.view.len;
	if (core_mapping_enter(self, method)) {
		good = core_check_strided(&call, self, self->nbytes);
		if (good)
			core_mapping_copy_strided(self, &call, to_write);
		core_mapping_leave(self);
	}
	PyBuffer_Release(&call.view);
	return core_copied(good, to_write, nbytes);
}

CORE_METHOD(core_mapping_write_strided, mapping, copy_array, "Mapping.write_strided", true)
CORE_METHOD(core_mapping_readinto_strided, mapping, copy_array, "Mapping.readinto_strided", false)
