/* SPDX-License-Identifier: MIT */
/* The Link type in C, for its server. */
#ifndef GDRPY_LINK_TYPE_H
#define GDRPY_LINK_TYPE_H

#include "channel/requests.h"
#include "records.h"

struct link {
	PyObject_HEAD struct core_ring_memory memory;
	struct core_requests end;
	PyObject ***claims;  /* by slot: where the last answer goes; NULL once it is there */
	unsigned char state; /* an enum core_ring_state */
	bool closed;	     /* by close(), or it has no caller */
	/* Of a named link: requests before this one that are not answered never will be; all while
	 * there is no kernel's end. */
	uint64_t lost_below;
};

/* Whether this process may use the link; false with an exception set. */
bool core_link_usable(struct link *self, const char *method);

#endif
