/* SPDX-License-Identifier: MIT */
/* What closes once, and is its process's own. */
#ifndef GDRPY_RESOURCE_H
#define GDRPY_RESOURCE_H

#include "pyhelp.h"

extern PyType_Spec core_resource_spec;

/* Before the first of them: false with an exception set. */
bool core_resource_names(void);

#endif
