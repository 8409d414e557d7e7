/* SPDX-License-Identifier: MIT */
/* Clean-up steps. */
#ifndef GDRPY_UNDO_H
#define GDRPY_UNDO_H

#include "pyhelp.h"

extern PyType_Spec core_undo_spec;

/* Called before the first Undo is made; false with an exception set. */
bool core_undo_names(void);

#endif
