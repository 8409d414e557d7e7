/* SPDX-License-Identifier: MIT */
/*
 * gdrpy._core._mapping.Buffer: the base of Python classes whose __buffer__(flags) gives a
 * memoryview of their bytes. Python calls that by itself from 3.12 on only.
 *
 * The consumer gets the memoryview's own buffer, and so refers to it: there is nothing to release
 * here.
 */
#include "buffer.h"

static int getbuffer(PyObject *self, Py_buffer *view, int flags)
{
	PyObject *memory = PyObject_CallMethod(self, "__buffer__", "i", flags);
	int failed;

	view->obj = NULL;
	if (!memory)
		return -1;
	failed = PyObject_GetBuffer(memory, view, flags);
	Py_DECREF(memory);
	return failed;
}

static PyType_Slot slots[] = {
	{Py_tp_doc, "Supports the buffer protocol by its subclass's __buffer__()."},
	{Py_bf_getbuffer, getbuffer},
	{0, NULL},
};

PyType_Spec gdr_buffer_spec = {
	.name = "gdrpy._core._mapping.Buffer",
	.basicsize = sizeof(PyObject),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
	.slots = slots,
};
