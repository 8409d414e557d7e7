/* SPDX-License-Identifier: MIT */
/*
 * Mapping.scatter(): records of one size to separate offsets, with one fence.
 *
 * Everything is checked before the first store. Python code (conversions, exporters of buffers)
 * runs before the last check of the mapping.
 */
#include "copy/pieces.h"
#include "mapping.h"

#include <stdio.h>
#include <string.h>

#define LABEL_BYTES 80

static const char method[] = "Mapping.scatter";

static bool holds_int64(const Py_buffer *view)
{
	return view->ndim == 1 && view->itemsize == sizeof(int64_t) && view->format &&
	       (uintptr_t)view->buf % sizeof(int64_t) == 0 &&
	       (!strcmp(view->format, "l") || !strcmp(view->format, "q"));
}

static bool is_refusal(void)
{
	return PyErr_ExceptionMatches(PyExc_BufferError) ||
	       PyErr_ExceptionMatches(PyExc_ValueError) || PyErr_ExceptionMatches(PyExc_TypeError);
}

/*
 * Get offsets as contiguous, aligned int64 in one dimension: as they are, or else converted by
 * numpy.
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
	module = PyImport_ImportModule("gdrpy.common.arguments");
	if (!module)
		return false;
	array = PyObject_CallMethod(module, "as_offsets", "sO", method, object);
	Py_DECREF(module);
	if (!array)
		return false;
	failed = PyObject_GetBuffer(array, view, PyBUF_ND);
	Py_DECREF(array);
	return !failed;
}

static bool check_records(struct mapping *self, const struct core_records *records, int64_t last)
{
	size_t outside = core_first_outside(records, last);
	char label[LABEL_BYTES];
	Py_ssize_t offset;

	if (outside == records->count)
		return true;
	offset = records->offsets[outside];
	snprintf(label, sizeof(label), "%s: offsets[%zu]", method, outside);
	if (offset < 0)
		return core_raise(PyExc_ValueError, "%s must be 0 or more, not %zd", label, offset);
	return core_mapping_range(self, label, offset, (Py_ssize_t)records->nbytes);
}

/* Everything from the first to the last record written counts as written. */
static bool check_apart(struct mapping *self, const struct core_records *records,
			const Py_buffer *data)
{
	int64_t first = INT64_MAX, end = 0;

	if (!core_overlap(self->address, (size_t)self->nbytes, data->buf, (size_t)data->len))
		return true;
	for (size_t i = 0; i < records->count; i++) {
		first = records->offsets[i] < first ? records->offsets[i] : first;
		end = records->offsets[i] > end ? records->offsets[i] : end;
	}
	end += (int64_t)records->nbytes;
	return core_mapping_apart(self, method, "records", first, end - first, data->buf,
				  data->len);
}

static bool scatter_records(struct mapping *self, const Py_buffer *offsets, const Py_buffer *data)
{
	Py_ssize_t count = data->ndim ? data->shape[0] : -1;
	struct core_records records = {
		.offsets = offsets->buf,
		.records = data->buf,
		.nbytes = count > 0 ? (size_t)(data->len / count) : 0,
		.count = (size_t)offsets->shape[0],
	};
	int64_t last = self->nbytes - (int64_t)records.nbytes;
	PyThreadState *thread;
	size_t put;

	if (count != offsets->shape[0])
		return core_raise(
			PyExc_ValueError,
			"%s: there are %zd offsets: records must be an array of as many, one "
			"for each element of its first dimension, which has %zd",
			method, offsets->shape[0], count < 0 ? 0 : count);
	if (!check_records(self, &records, last) || !check_apart(self, &records, data))
		return false;

	thread = core_mapping_unlock(self, data->len >= CORE_UNLOCKED_WRITE);
	put = core_put_records(self->type, self->address, &records, last);
	core_mapping_fence(self);
	core_mapping_relock(self, thread);
	if (put == records.count)
		return true;
	return core_raise(PyExc_RuntimeError, "%s: offsets[%zu] was changed during the call",
			  method, put);
}

PyObject *core_mapping_scatter(struct mapping *self, CORE_PARAMETERS)
{
	static const char *const names[] = {"offsets", "records", NULL};
	Py_buffer offsets, records;
	PyObject *arg[2];
	bool good = false;

	if (!core_parse(method, CORE_ARGUMENTS, names, 2, arg) ||
	    !core_mapping_writable(self, method) || !export_offsets(arg[0], &offsets))
		return NULL;
	if (!core_get_view(method, "records", arg[1], 0, &records)) {
		PyBuffer_Release(&offsets);
		return NULL;
	}
	if (core_mapping_enter(self, method)) {
		good = scatter_records(self, &offsets, &records);
		core_mapping_leave(self);
	}
	PyBuffer_Release(&records);
	PyBuffer_Release(&offsets);
	if (!good)
		return NULL;
	Py_RETURN_NONE;
}
