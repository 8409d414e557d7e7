/* SPDX-License-Identifier: MIT */
/* The Channel type in C, for its reader. */
#ifndef GDRPY_CHANNEL_TYPE_H
#define GDRPY_CHANNEL_TYPE_H

#include "channel/ring.h"
#include "records.h"

struct channel {
	PyObject_HEAD struct core_ring_memory memory;
	struct core_ring_producer producer;
	bool closed;
};

/* Whether this process may use the channel; false with an exception set. */
bool core_channel_usable(struct channel *self, const char *method);

#endif
