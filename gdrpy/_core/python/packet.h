/* SPDX-License-Identifier: MIT */
/* Packets of Unix sockets, with file descriptors beside them. */
#ifndef GDRPY_PACKET_H
#define GDRPY_PACKET_H

#include "pyhelp.h"

#include <string.h>
#include <sys/socket.h>

/* Maximum descriptors of one message. Source: SCM_MAX_FD, unix(7). */
#define CORE_MAX_FDS 253

/* Room for that many descriptors, aligned as the kernel requires. */
union core_control {
	char bytes[CMSG_SPACE(CORE_MAX_FDS * sizeof(int))];
	struct cmsghdr align;
};

/* Copy the received descriptors to out, and return how many. */
static inline Py_ssize_t core_find_fds(struct msghdr *message, int *out)
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

/* How an extension owns the descriptors of a packet. */
struct core_receiver {
	/* recvmsg() with MSG_CMSG_CLOEXEC; then core_find_fds(), for *count. -1 with errno set. */
	ssize_t (*take)(int sock, struct msghdr *message, int *fds, Py_ssize_t *count);
	/* A list of owners, None for a descriptor -1; NULL with an exception set and all closed. */
	PyObject *(*own)(const int *fds, Py_ssize_t count);
	int (*close)(int fd);
};

/*
 * Receive a packet: its bytes, its descriptors, the flags; NULL with an exception set. The second
 * function takes the arguments of receive(sock, limit, max_fds).
 */
PyObject *core_receive_packet(const struct core_receiver *receiver, int sock, Py_ssize_t limit,
			      Py_ssize_t max_fds);
PyObject *core_receive_by(const struct core_receiver *receiver, PyObject *args);

#endif
