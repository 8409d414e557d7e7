/* SPDX-License-Identifier: MIT */
/* Packets of Unix sockets, with file descriptors beside them. */
#ifndef GDRPY_PACKET_H
#define GDRPY_PACKET_H

#include "pyhelp.h"

#include <string.h>
#include <sys/socket.h>

/* What the kernel takes beside one message. Source: SCM_MAX_FD, unix(7). */
#define GDR_MAX_FDS 253

/* Room for that many descriptors, aligned as the kernel's headers want it. */
union gdr_control {
	char bytes[CMSG_SPACE(GDR_MAX_FDS * sizeof(int))];
	struct cmsghdr align;
};

/* Put the descriptors that came into out; how many. */
static inline Py_ssize_t gdr_find_fds(struct msghdr *message, int *out)
{
	Py_ssize_t found = 0;
	struct cmsghdr *header;

	for (header = CMSG_FIRSTHDR(message); header; header = CMSG_NXTHDR(message, header)) {
		size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
			continue;
		memcpy(out + found, CMSG_DATA(header), count * sizeof(int));
		found += (Py_ssize_t)count;
	}
	return found;
}

/* A buffer for a packet with up to so many descriptors; NULL with an exception set. */
static inline char *gdr_packet_buffer(Py_ssize_t limit, Py_ssize_t max_fds)
{
	char *buffer;

	if (limit < 0 || max_fds < 0 || max_fds > GDR_MAX_FDS) {
		PyErr_Format(PyExc_ValueError, "a limit of %zd bytes and %zd descriptors", limit,
			     max_fds);
		return NULL;
	}
	buffer = PyMem_Malloc((size_t)limit);
	if (!buffer)
		PyErr_NoMemory();
	return buffer;
}

#endif
