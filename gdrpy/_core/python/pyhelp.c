/* SPDX-License-Identifier: MIT */
#include "pyhelp.h"

#include "layout.h"

#include <string.h>

PyObject *core_error_closed, *core_error_forked, *core_error_missing_view, *core_error_readonly,
	*core_error_revoked, *core_error_timeout, *core_make_lock;
struct core_names core_names;
unsigned int core_fork_generation;

/* Looks from the end on, because most keywords name a method's last arguments. */
static Py_ssize_t index_of(PyObject *keyword, const char *const *names, Py_ssize_t count)
{
	while (count--)
		if (PyUnicode_CompareWithASCIIString(keyword, names[count]) == 0)
			break;
	return count;
}

bool core_parse(const char *method, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
		const char *const *names, int required, PyObject **out)
{
	Py_ssize_t keywords = kwnames ? PyTuple_Size(kwnames) : 0;
	Py_ssize_t i, most;

	for (most = 0; names[most]; most++)
		out[most] = most < nargs ? args[most] : NULL;
	if (nargs > most)
		return core_raise(PyExc_TypeError, "%s takes at most %zd arguments, not %zd",
				  method, most, nargs);

	for (i = 0; i < keywords; i++) {
		PyObject *keyword = PyTuple_GetItem(kwnames, i);
		Py_ssize_t slot = index_of(keyword, names, most);

		if (slot < 0 || out[slot])
			return core_raise(PyExc_TypeError,
					  "%s got an unexpected or repeated argument %R", method,
					  keyword);
		out[slot] = args[nargs + i];
	}

	for (i = 0; i < required; i++) {
		if (!out[i])
			return core_raise(PyExc_TypeError, "%s needs the argument '%s'", method,
					  names[i]);
	}
	return true;
}

/*
 * Whether elements are or contain Python objects. numpy takes 30 ns to give the format, so it is
 * requested only if a pointer would fit. Dates and other libraries' types have no format.
 */
static bool holds_objects(PyObject *object, const Py_buffer *view)
{
	bool in_name = false, found = false;
	Py_buffer formatted;

	if (view->itemsize < (Py_ssize_t)sizeof(PyObject *))
		return false;
	if (PyObject_GetBuffer(object, &formatted, PyBUF_STRIDES | PyBUF_FORMAT)) {
		PyErr_Clear();
		return false;
	}
	for (const char *at = formatted.format; at && *at && !found; at++) {
		if (*at == ':') /* field names are enclosed in colons */
			in_name = !in_name;
		found = *at == 'O' && !in_name;
	}
	PyBuffer_Release(&formatted);
	return found;
}

/* Wrap an exporter's error in a message that names the call and the argument. */
static void refuse_view(const char *method, const char *name, int flags)
{
	const char *what = flags & PyBUF_WRITABLE
				   ? "writable and C-contiguous"
				   : "C-contiguous, as a copy by numpy.ascontiguousarray is";
	PyObject *type, *value, *traceback;

	if (flags & PyBUF_STRIDES & ~PyBUF_ND)
		what = "writable";
	if (!PyErr_ExceptionMatches(PyExc_ValueError) && !PyErr_ExceptionMatches(PyExc_BufferError))
		return;
	PyErr_Fetch(&type, &value, &traceback);
	PyErr_Format(type, "%s: %s must be %s (%S)", method, name, what, value);
	Py_XDECREF(type);
	Py_XDECREF(value);
	Py_XDECREF(traceback);
}

/*
 * A numpy array over another library's host array without a buffer, such as torch's. NULL with an
 * exception set.
 */
static PyObject *show_array(const char *method, const char *name, PyObject *object, bool writable)
{
	PyObject *module, *shown;

	if (!PyObject_HasAttrString(object, "__dlpack__"))
		return PyErr_Format(PyExc_TypeError,
				    "%s: %s must be a bytes-like object or an array, not %.100R",
				    method, name, object);
	module = PyImport_ImportModule("gdrpy.arrays.elements");
	if (!module)
		return NULL;
	shown = PyObject_CallMethod(module, "host_view", "sOO", method, object,
				    writable ? Py_True : Py_False);
	Py_DECREF(module);
	return shown;
}

bool core_get_view(const char *method, const char *name, PyObject *object, int flags,
		   Py_buffer *view)
{
	if (!PyObject_CheckBuffer(object)) {
		PyObject *shown = show_array(method, name, object, flags & PyBUF_WRITABLE);
		bool got = shown && core_get_view(method, name, shown, flags, view);

		Py_XDECREF(shown);
		return got;
	}
	if (PyObject_GetBuffer(object, view, flags | PyBUF_ND)) {
		refuse_view(method, name, flags);
		return false;
	}
	if (!holds_objects(object, view))
		return true;
	PyBuffer_Release(view);
	return core_raise(PyExc_TypeError,
			  "%s: %s holds Python objects, not bytes: give it a dtype of numbers",
			  method, name);
}

bool core_get_bytes(const char *method, const char *name, PyObject *object, bool writable,
		    struct core_bytes *bytes)
{
	if (PyBytes_CheckExact(object) && !writable) {
		bytes->view.obj = NULL; /* the caller's argument keeps it */
		bytes->data = core_bytes_data(object);
		bytes->nbytes = Py_SIZE(object);
		return true;
	}
	if (!core_get_view(method, name, object, writable ? PyBUF_WRITABLE : 0, &bytes->view))
		return false;
	bytes->data = bytes->view.buf;
	bytes->nbytes = bytes->view.len;
	return true;
}

Py_ssize_t core_as_size(const char *method, const char *name, PyObject *object, Py_ssize_t absent)
{
	Py_ssize_t value;

	if (!object)
		return absent;

	value = PyNumber_AsSsize_t(object, PyExc_OverflowError);
	if (value >= 0)
		return value;
	if (!PyErr_Occurred()) {
		PyErr_Format(PyExc_ValueError, "%s: %s must be 0 or more, not %zd", method, name,
			     value);
	} else if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
		PyErr_Format(PyExc_ValueError, "%s: %s %R does not fit 63 bits", method, name,
			     object);
	} else if (!PyIndex_Check(object)) {
		PyErr_Format(PyExc_TypeError, "%s: %s must be an int, not %R", method, name,
			     object);
	}
	return -1;
}

bool core_as_word(const char *method, PyObject *object, Py_ssize_t width, uint64_t *value)
{
	PyObject *number;

	if (!PyIndex_Check(object))
		return core_raise(PyExc_TypeError, "%s: value must be an int, not %R", method,
				  object);
	number = PyNumber_Index(object);
	if (!number)
		return false;
	*value = PyLong_AsUnsignedLongLong(number);
	Py_DECREF(number);
	if (PyErr_Occurred() || (width == 4 && *value > UINT32_MAX))
		return core_raise(PyExc_ValueError, "%s: %R does not fit %zd unsigned bits", method,
				  object, width * 8);
	return true;
}

bool core_as_timeout(const char *method, PyObject *object, int64_t *timeout)
{
	double seconds;

	*timeout = INT64_MAX;
	if (!object || object == Py_None)
		return true;
	seconds = PyFloat_AsDouble(object);
	if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_TypeError))
		return false;
	if (PyErr_Occurred() || !(seconds >= 0))
		return core_raise(PyExc_ValueError,
				  "%s: timeout must be seconds >= 0 or None, not %R", method,
				  object);
	if (seconds < 9e9)
		*timeout = (int64_t)(seconds * 1e9);
	return true;
}
