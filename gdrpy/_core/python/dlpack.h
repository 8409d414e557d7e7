/* SPDX-License-Identifier: MIT */
/* DLPack: memory handed to other array libraries, and taken from them, as a capsule. */
#ifndef GDRPY_DLPACK_H
#define GDRPY_DLPACK_H

#include "pyhelp.h"

extern const char gdr_dlpack_doc[];

PyObject *gdr_dlpack(PyObject *module, PyObject *args);

extern const char gdr_take_dlpack_doc[];

PyObject *gdr_take_dlpack(PyObject *module, PyObject *capsule);

#endif
