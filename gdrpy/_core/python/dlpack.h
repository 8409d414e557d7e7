/* SPDX-License-Identifier: MIT */
/* DLPack: memory handed to other array libraries, and taken from them, as a capsule. */
#ifndef GDRPY_DLPACK_H
#define GDRPY_DLPACK_H

#include "pyhelp.h"

extern const char core_dlpack_doc[];

PyObject *core_dlpack(PyObject *module, PyObject *args);

extern const char core_take_dlpack_doc[];

PyObject *core_take_dlpack(PyObject *module, PyObject *capsule);

#endif
