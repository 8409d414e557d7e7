/* SPDX-License-Identifier: MIT */
/* Objects that own a file descriptor each, and the packets that bring them. */
#ifndef GDRPY_DESCRIPTOR_H
#define GDRPY_DESCRIPTOR_H

#include "pyhelp.h"

extern PyTypeObject *core_descriptor_type_object;
extern PyType_Spec core_descriptor_spec;

/* An object for a private descriptor, which is closed if there can be none: NULL then. */
PyObject *core_descriptor_own(int fd);

/* Functions of the module. */
PyObject *core_exchange(PyObject *module, PyObject *args);
PyObject *core_receive(PyObject *module, PyObject *args);

#endif
