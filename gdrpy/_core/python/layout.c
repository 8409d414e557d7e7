/* SPDX-License-Identifier: MIT */
#include "layout.h"

#ifdef Py_LIMITED_API

/* The longest header possible. */
#define LONGEST_HEADER 64

size_t core_tuple_header;
size_t core_list_header;
size_t core_bytes_header;

static bool find_tuple_header(PyObject *pair)
{
	for (size_t at = sizeof(PyVarObject); at <= LONGEST_HEADER; at += sizeof(PyObject *)) {
		PyObject **items = (PyObject **)((char *)pair + at);

		if (items[0] == PyTuple_GetItem(pair, 0) && items[1] == PyTuple_GetItem(pair, 1)) {
			core_tuple_header = at;
			return true;
		}
	}
	return core_raise(PyExc_SystemError,
			  "gdrpy: this Python does not keep items in its tuples");
}

/* A list has a pointer to its items, behind its size. */
static bool find_list_header(PyObject *list)
{
	core_list_header = sizeof(PyVarObject);
	if (core_list_item(list, 0) == PyList_GetItem(list, 0))
		return true;
	return core_raise(PyExc_SystemError, "gdrpy: this Python keeps a list's items elsewhere");
}

bool core_find_layouts(void)
{
	PyObject *bytes = PyBytes_FromStringAndSize(NULL, 0);
	PyObject *pair = bytes ? PyTuple_Pack(2, bytes, Py_None) : NULL;
	PyObject *list = pair ? PySequence_List(pair) : NULL;
	bool found = list && find_tuple_header(pair) && find_list_header(list);

	if (found)
		core_bytes_header = (size_t)(PyBytes_AsString(bytes) - (char *)bytes);
	Py_XDECREF(list);
	Py_XDECREF(pair);
	Py_XDECREF(bytes);
	return found;
}

#endif
