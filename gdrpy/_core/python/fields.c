/* SPDX-License-Identifier: MIT */
/* Checks of a decoded message's fields: a broker's client checks those of every grant. */
#include "fields.h"

/* 1 if low <= value <= high, -1 with an exception set. */
static int in_bounds(PyObject *value, PyObject *low, PyObject *high)
{
	int fits = PyObject_RichCompareBool(low, value, Py_LE);

	return fits > 0 ? PyObject_RichCompareBool(value, high, Py_LE) : fits;
}

/* 1 if a value is of one of the types, and a number or a length within bounds, if there are any. */
static int fits(PyObject *value, PyObject *field)
{
	PyObject *types = PyTuple_GetItem(field, 1), *low = PyTuple_GetItem(field, 2);
	PyObject *high = PyTuple_GetItem(field, 3), *length;
	Py_ssize_t i = 0, count = PyTuple_Size(types);
	int found;

	while (i < count && PyTuple_GetItem(types, i) != (PyObject *)Py_TYPE(value))
		i++;
	if (i == count || high == Py_None)
		return i < count;
	if (PyLong_Check(value))
		return in_bounds(value, low, high);
	length = PyLong_FromSsize_t(PyObject_Size(value));
	found = length ? in_bounds(length, low, high) : -1;
	Py_XDECREF(length);
	return found;
}

PyObject *core_misfit(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
	Py_ssize_t i;

	if (nargs != 2 || !PyDict_Check(args[0]) || !PyTuple_Check(args[1]))
		return PyErr_Format(PyExc_TypeError, "misfit takes a dict and a tuple");
	for (i = 0; i < PyTuple_Size(args[1]); i++) {
		PyObject *field = PyTuple_GetItem(args[1], i);
		PyObject *name = PyTuple_GetItem(field, 0);
		PyObject *value = PyDict_GetItemWithError(args[0], name);
		int found = value ? fits(value, field) : 0;

		if (found < 0 || PyErr_Occurred())
			return NULL;
		if (!found)
			return Py_NewRef(name);
	}
	Py_RETURN_NONE;
}
