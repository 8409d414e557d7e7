/* SPDX-License-Identifier: MIT */
/* Steps that give things back. */
#ifndef GDRPY_UNDO_H
#define GDRPY_UNDO_H

#include "pyhelp.h"

extern PyType_Spec core_undo_spec;

/* Before the first of them: false with an exception set. */
bool core_undo_names(void);

#endif
