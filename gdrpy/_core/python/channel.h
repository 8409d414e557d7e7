/* SPDX-License-Identifier: MIT */
/* The Channel type in C, for its reader. */
#ifndef GDRPY_CHANNEL_TYPE_H
#define GDRPY_CHANNEL_TYPE_H

#include "channel/turns.h"
#include "records.h"

struct channel {
	PyObject_HEAD struct core_ring_memory memory;
	struct core_ring_producer producer;
	struct core_turns turns; /* of a named channel's producers */
	/* As of struct core_pushing: alone, or in turns. */
	uint64_t (*push)(void *self, const char *records, uint64_t count);
	bool (*may_push)(void *self);
	unsigned char state; /* an enum core_ring_state */
	bool closed;	     /* by close(), or it has no producer */
};

/* Whether this process may use the channel; false with an exception set. */
bool core_channel_usable(struct channel *self, const char *method);

#endif
