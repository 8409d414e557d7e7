/* SPDX-License-Identifier: MIT */
/* Checks of a decoded message's fields. */
#ifndef GDRPY_FIELDS_H
#define GDRPY_FIELDS_H

#include "pyhelp.h"

/* A function of the module. */
PyObject *core_misfit(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

#endif
