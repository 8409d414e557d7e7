/* SPDX-License-Identifier: MIT */
/* Objects that own a file descriptor each, and the packets that bring them. */
#ifndef GDRPY_DESCRIPTOR_H
#define GDRPY_DESCRIPTOR_H

#include "pyhelp.h"

extern PyTypeObject *gdr_descriptor_type_object;
extern PyType_Spec gdr_descriptor_spec;

/* An object for a private descriptor, which is closed if there can be none: NULL then. */
PyObject *gdr_descriptor_own(int fd);

/* The number of an open one, which stays its; -1 with an exception set. */
int gdr_descriptor_number(PyObject *object);

/* It owns the descriptor no more: the caller does, for whom it is private. */
void gdr_descriptor_take(PyObject *object);

/* Functions of the module. */
PyObject *gdr_exchange(PyObject *module, PyObject *args);
PyObject *gdr_receive(PyObject *module, PyObject *args);

#endif
