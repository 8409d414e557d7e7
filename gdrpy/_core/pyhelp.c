/* SPDX-License-Identifier: MIT */
#include "pyhelp.h"

#include <string.h>

PyObject *gdr_error_closed;
PyObject *gdr_error_forked;
PyObject *gdr_error_readonly;
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

Py_ssize_t gdr_as_size(const char *method, const char *name, PyObject *object, Py_ssize_t absent)
{
	Py_ssize_t value;

	if (!object)
		return absent;

	value = PyNumber_AsSsize_t(object, PyExc_ValueError);
	if (value >= 0)
		return value;
	if (value == -1 && PyErr_Occurred()) {
		if (PyErr_ExceptionMatches(PyExc_ValueError))
			PyErr_Format(PyExc_ValueError, "%s: %s %R does not fit 63 bits", method,
				     name, object);
		return -1;
	}
	PyErr_Format(PyExc_ValueError, "%s: %s must not be negative, and is %zd", method, name,
		     value);
	return -1;
}
