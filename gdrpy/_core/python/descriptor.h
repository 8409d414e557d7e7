/* SPDX-License-Identifier: MIT */
/* Objects that own a file descriptor each, and the packets that bring them. */
#ifndef GDRPY_DESCRIPTOR_H
#define GDRPY_DESCRIPTOR_H

#include "pyhelp.h"

extern PyTypeObject *gdr_descriptor_type_object;
extern PyType_Spec gdr_descriptor_spec;

/* An object for a private descriptor, which is closed if there can be none: NULL then. */
PyObject *gdr_descriptor_own(int fd);

/* Functions of the module. */
PyObject *gdr_exchange(PyObject *module, PyObject *args);
PyObject *gdr_receive(PyObject *module, PyObject *args);

#endif
