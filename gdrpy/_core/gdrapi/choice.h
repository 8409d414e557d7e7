/* SPDX-License-Identifier: MIT */
/* Chooses a session's backend by the environment, the machine and the memory. */
#ifndef GDRAPI_CHOICE_H
#define GDRAPI_CHOICE_H

#include "session.h"

/* Read the environment and ask the backends; false, with errors logged, if none is usable. */
bool core_choose(struct gdr *session);

/* Whether pins keep freed memory, and whether a pin may be forced through BAR1. */
bool core_pins_persist(const struct gdr *session);
bool core_can_force_pcie(const struct gdr *session);

/* Take in at least 1 byte; NULL with *error filled in. */
struct core_memory *core_take_range(struct gdr *session, uint64_t ptr, size_t nbytes,
				    bool force_pcie, struct core_error *error);

#endif
