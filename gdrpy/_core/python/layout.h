/* SPDX-License-Identifier: MIT */
/*
 * Where tuples and lists keep their items, and bytes objects their data, found at import. The
 * limited API needs a function call for each, which is most of the work in a loop over many
 * objects. Pythons without a limited API have macros for tuples and bytes; their lists are shared
 * with other threads.
 */
#ifndef GDRPY_LAYOUT_H
#define GDRPY_LAYOUT_H

#include "pyhelp.h"

#ifdef Py_LIMITED_API

extern size_t core_tuple_header;
extern size_t core_list_header;
extern size_t core_bytes_header;

/* False with an exception set if this Python has another layout. */
bool core_find_layouts(void);

/* For objects of exactly that type. References are borrowed. */
static inline PyObject *core_tuple_item(PyObject *tuple, Py_ssize_t i)
{
	return ((PyObject **)((char *)tuple + core_tuple_header))[i];
}

static inline PyObject *core_list_item(PyObject *list, Py_ssize_t i)
{
	return (*(PyObject ***)((char *)list + core_list_header))[i];
}

static inline char *core_bytes_data(PyObject *bytes)
{
	return (char *)bytes + core_bytes_header;
}

#else

#define core_find_layouts() true
#define core_tuple_item(tuple, i) PyTuple_GET_ITEM(tuple, i)
#define core_bytes_data(bytes) PyBytes_AS_STRING(bytes)

#endif

#endif
