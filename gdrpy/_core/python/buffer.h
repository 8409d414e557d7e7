/* SPDX-License-Identifier: MIT */
/* The buffer protocol for classes written in Python. */
#ifndef GDRPY_BUFFER_H
#define GDRPY_BUFFER_H

#include "pyhelp.h"

extern PyType_Spec core_buffer_spec;

#endif
