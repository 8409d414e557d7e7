/* SPDX-License-Identifier: MIT */
/*
 * gdrpy._core._mapping.Buffer: the base of Python classes whose _buffer() returns a memoryview.
 *
 * Python has __buffer__() only from 3.12 on. Consumers may ask again without clearing the first
 * error: torch asks for writable memory, then for readable memory.
 */
#include "module.h"

PyTypeObject *core_buffer_type_object;

/* The consumer gets the memoryview's own buffer and keeps it, so nothing is released here. */
static int getbuffer(PyObject *self, Py_buffer *view, int flags)
{
	PyObject *error, *value, *traceback, *memory;
	int failed = -1;

	PyErr_Fetch(&error, &value, &traceback);
	view->obj = NULL;
	memory = PyObject_CallMethod(self, "_buffer", "O",
				     flags & PyBUF_FORMAT ? Py_True : Py_False);
	if (memory) {
		failed = PyObject_GetBuffer(memory, view, flags);
		Py_DECREF(memory);
	}
	if (error && !failed) {
		PyErr_Restore(error, value, traceback);
		return 0;
	}
	Py_XDECREF(error);
	Py_XDECREF(value);
	Py_XDECREF(traceback);
	return failed;
}

static PyType_Slot slots[] = {
	{Py_tp_doc, "Supports the buffer protocol through its subclass's _buffer(formatted), which "
		    "returns a memoryview, of bytes perhaps if no format is asked for."},
	{Py_bf_getbuffer, getbuffer},
	{0, NULL},
};

PyType_Spec core_buffer_spec = {
	.name = "gdrpy._core._mapping.Buffer",
	.basicsize = sizeof(PyObject),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
	.slots = slots,
};
