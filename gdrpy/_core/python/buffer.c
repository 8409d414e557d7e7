/* SPDX-License-Identifier: MIT */
/*
 * gdrpy._core._mapping.Buffer: the base of Python classes whose _buffer() gives a memoryview.
 *
 * __buffer__() of Python 3.12 is the same for newer Pythons alone. There, and here, consumers may
 * ask a second time without having cleared the error of the first: torch asks for memory to write,
 * then for memory to read.
 */
#include "buffer.h"

/* The consumer gets the memoryview's own buffer, and so refers to it: nothing is released here. */
static int getbuffer(PyObject *self, Py_buffer *view, int flags)
{
	PyObject *error, *value, *traceback, *memory;
	int failed = -1;

	PyErr_Fetch(&error, &value, &traceback);
	view->obj = NULL;
	memory = PyObject_CallMethod(self, "_buffer", NULL);
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
	{Py_tp_doc, "Supports the buffer protocol by its subclass's _buffer()."},
	{Py_bf_getbuffer, getbuffer},
	{0, NULL},
};

PyType_Spec core_buffer_spec = {
	.name = "gdrpy._core._mapping.Buffer",
	.basicsize = sizeof(PyObject),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
	.slots = slots,
};
