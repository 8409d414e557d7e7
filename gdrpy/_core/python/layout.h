/* SPDX-License-Identifier: MIT */
/*
 * Where tuples and lists keep their items, and bytes objects their data. The limited API has a
 * function call for each; in a loop over many objects that is most of the work. It is found out at
 * import. Pythons without a limited API say it themselves; their lists are another thread's as
 * well.
 */
#ifndef GDRPY_LAYOUT_H
#define GDRPY_LAYOUT_H

#include "pyhelp.h"

#ifdef Py_LIMITED_API

extern size_t core_tuple_header;
extern size_t core_list_header;
extern size_t core_bytes_header;

/* False with an exception set, where this Python keeps them elsewhere than in the object. */
bool core_find_layouts(void);

/* Of an object of exactly that type; borrowed. */
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
