/* SPDX-License-Identifier: MIT */
/* The Inbox type in C, for its writer. */
#ifndef GDRPY_INBOX_TYPE_H
#define GDRPY_INBOX_TYPE_H

#include "channel/inbox.h"
#include "records.h"

struct inbox {
	PyObject_HEAD struct core_ring_memory memory;
	struct gdr_inbox_reader reader;
	/* Of a named inbox: an enum core_ring_state, and the number below which records that are
	 * not whole never will be. */
	unsigned char state;
	uint64_t settled;
};

/* Whether this process may use the inbox; false with an exception set. */
bool core_inbox_usable(struct inbox *self, const char *method);

#endif
