/* SPDX-License-Identifier: MIT */
/* Grants of a broker. */
#ifndef GDRPY_LEASE_H
#define GDRPY_LEASE_H

#include "pyhelp.h"

extern PyType_Spec core_lease_spec;

/* Called before the first Lease is made; false with an exception set. */
bool core_lease_names(void);

#endif
