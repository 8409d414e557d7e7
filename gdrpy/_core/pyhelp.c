/* SPDX-License-Identifier: MIT */
#include "pyhelp.h"

#include "layout.h"

#include <string.h>

PyObject *gdr_error_closed;
PyObject *gdr_error_forked;
PyObject *gdr_error_missing_view;
PyObject *gdr_error_readonly;
PyObject *gdr_error_revoked;
PyObject *gdr_error_timeout;
unsigned int gdr_fork_generation;

static int index_of(PyObject *keyword, const char *const *names)
{
	int i;

	for (i = 0; names[i]; i++)
		if (PyUnicode_CompareWithASCIIString(keyword, names[i]) == 0)
			return i;
	return -1;
}

static int count_of(const char *const *names)
{
	int n = 0;

	while (names[n])
		n++;
	return n;
}

bool gdr_parse(const char *method, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
	       const char *const *names, int required, PyObject **out)
{
	Py_ssize_t keywords = kwnames ? PyTuple_Size(kwnames) : 0;
	int most = count_of(names);
	Py_ssize_t i;

	if (nargs > most) {
		PyErr_Format(PyExc_TypeError, "%s takes at most %d arguments, not %zd", method,
			     most, nargs);
		return false;
	}

	for (i = 0; i < most; i++)
		out[i] = i < nargs ? args[i] : NULL;

	for (i = 0; i < keywords; i++) {
		PyObject *keyword = PyTuple_GetItem(kwnames, i);
		int slot = index_of(keyword, names);

		if (slot < 0 || out[slot]) {
			PyErr_Format(PyExc_TypeError,
				     "%s got an unexpected or repeated argument %R", method,
				     keyword);
			return false;
		}
		out[slot] = args[nargs + i];
	}

	for (i = 0; i < required; i++) {
		if (!out[i]) {
			PyErr_Format(PyExc_TypeError, "%s needs the argument '%s'", method,
				     names[i]);
			return false;
		}
	}
	return true;
}

bool gdr_get_bytes(PyObject *object, bool writable, struct gdr_bytes *bytes)
{
	if (PyBytes_CheckExact(object) && !writable) {
		bytes->view.obj = NULL; /* the caller's argument keeps it */
		bytes->data = gdr_bytes_data(object);
		bytes->nbytes = Py_SIZE(object);
		return true;
	}
	if (PyObject_GetBuffer(object, &bytes->view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE))
		return false;
	bytes->data = bytes->view.buf;
	bytes->nbytes = bytes->view.len;
	return true;
}

Py_ssize_t gdr_as_size(const char *method, const char *name, PyObject *object, Py_ssize_t absent)
{
	Py_ssize_t value;

	if (!object)
		return absent;

	value = PyNumber_AsSsize_t(object, PyExc_OverflowError);
	if (value >= 0)
		return value;
	if (!PyErr_Occurred()) {
		PyErr_Format(PyExc_ValueError, "%s: %s must not be negative, and is %zd", method,
			     name, value);
	} else if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
		PyErr_Format(PyExc_ValueError, "%s: %s %R does not fit 63 bits", method, name,
			     object);
	} else if (!PyIndex_Check(object)) {
		PyErr_Format(PyExc_TypeError, "%s: %s must be an int, and is %R", method, name,
			     object);
	}
	return -1;
}

bool gdr_as_word(const char *method, PyObject *object, Py_ssize_t width, uint64_t *value)
{
	PyObject *number;

	if (!PyIndex_Check(object)) {
		PyErr_Format(PyExc_TypeError, "%s: value must be an int, and is %R", method,
			     object);
		return false;
	}
	number = PyNumber_Index(object);
	if (!number)
		return false;
	*value = PyLong_AsUnsignedLongLong(number);
	Py_DECREF(number);
	if (PyErr_Occurred() || (width == 4 && *value > UINT32_MAX)) {
		PyErr_Format(PyExc_ValueError, "%s: %R does not fit %zd unsigned bits", method,
			     object, width * 8);
		return false;
	}
	return true;
}

bool gdr_as_timeout(const char *method, PyObject *object, int64_t *timeout)
{
	double seconds;

	*timeout = INT64_MAX;
	if (!object || object == Py_None)
		return true;
	seconds = PyFloat_AsDouble(object);
	if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_TypeError))
		return false;
	if (PyErr_Occurred() || !(seconds >= 0)) {
		PyErr_Format(PyExc_ValueError,
			     "%s: timeout must be seconds >= 0 or None, and is %R", method, object);
		return false;
	}
	if (seconds < 9e9)
		*timeout = (int64_t)(seconds * 1e9);
	return true;
}
