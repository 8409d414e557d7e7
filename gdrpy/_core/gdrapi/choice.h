/* SPDX-License-Identifier: MIT */
/* Which backend serves a session, by the environment, the machine and the memory. */
#ifndef GDRAPI_CHOICE_H
#define GDRAPI_CHOICE_H

#include "session.h"

/* Read the environment and ask the backends; false if none can serve, which is told. */
bool core_choose(struct gdr *session);

/* Whether pins keep memory that is freed, and whether forcing one through BAR1 may be tried. */
bool core_pins_persist(const struct gdr *session);
bool core_can_force_pcie(const struct gdr *session);

/* NULL with *error filled in; 1 byte at least. */
struct core_memory *core_take_range(struct gdr *session, uint64_t ptr, size_t nbytes,
				    bool force_pcie, struct core_error *error);

#endif
