/* SPDX-License-Identifier: MIT */
#ifndef GDRPY_SIM_EVENT_H
#define GDRPY_SIM_EVENT_H

#include "context.h"

void event_free_all(struct context *context);

#endif
