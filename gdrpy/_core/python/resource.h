/* SPDX-License-Identifier: MIT */
/* Objects that close once and belong to their process. */
#ifndef GDRPY_RESOURCE_H
#define GDRPY_RESOURCE_H

#include "pyhelp.h"

extern PyType_Spec core_resource_spec;

/* Called before the first Resource is made; false with an exception set. */
bool core_resource_names(void);

#endif
