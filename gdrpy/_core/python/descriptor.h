/* SPDX-License-Identifier: MIT */
/* Objects that each own a file descriptor, and the packets that deliver them. */
#ifndef GDRPY_DESCRIPTOR_H
#define GDRPY_DESCRIPTOR_H

#include "pyhelp.h"

extern PyTypeObject *core_descriptor_type_object;
extern PyType_Spec core_descriptor_spec;

/* An object that owns a private descriptor. On failure NULL, and the descriptor is closed. */
PyObject *core_descriptor_own(int fd);

/* Functions of the module. */
PyObject *core_exchange(PyObject *module, PyObject *args);
PyObject *core_receive(PyObject *module, PyObject *args);

#endif
