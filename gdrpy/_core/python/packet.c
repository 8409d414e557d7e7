/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE 1

#include "packet.h"

#include <errno.h>

/* The packet, once its descriptors have owners. */
static PyObject *describe(const struct core_receiver *receiver, const char *data, ssize_t size,
			  int flags, const int *fds, Py_ssize_t count)
{
	PyObject *result = Py_BuildValue("y#Oi", data, (Py_ssize_t)size, Py_None, flags);
	PyObject *owners;

	if (!result) {
		while (count)
			receiver->close(fds[--count]);
		return NULL;
	}
	owners = receiver->own(fds, count);
	if (!owners || PyTuple_SetItem(result, 1, owners))
		Py_CLEAR(result);
	return result;
}

PyObject *core_receive_packet(const struct core_receiver *receiver, int sock, Py_ssize_t limit,
			      Py_ssize_t max_fds)
{
	union core_control control;
	struct msghdr message;
	int fds[CORE_MAX_FDS];
	struct iovec iov;
	PyObject *result = NULL;
	Py_ssize_t count;
	char *buffer;
	ssize_t size;

	if (limit < 0 || max_fds < 0 || max_fds > CORE_MAX_FDS)
		return PyErr_Format(PyExc_ValueError, "a limit of %zd bytes and %zd descriptors",
				    limit, max_fds);
	buffer = PyMem_Malloc((size_t)limit);
	if (!buffer)
		return PyErr_NoMemory();

	iov = (struct iovec){.iov_base = buffer, .iov_len = (size_t)limit};
	do {
		message = (struct msghdr){
			.msg_iov = &iov,
			.msg_iovlen = 1,
			.msg_control = &control,
			.msg_controllen = CMSG_SPACE((size_t)max_fds * sizeof(int)),
		};
		Py_BEGIN_ALLOW_THREADS;
		size = receiver->take(sock, &message, fds, &count);
		Py_END_ALLOW_THREADS;
	} while (size < 0 && errno == EINTR && !PyErr_CheckSignals());
	if (size >= 0)
		result = describe(receiver, buffer, size, message.msg_flags, fds, count);
	else if (!PyErr_Occurred())
		PyErr_SetFromErrno(PyExc_OSError);
	PyMem_Free(buffer);
	return result;
}

PyObject *core_receive_by(const struct core_receiver *receiver, PyObject *args)
{
	Py_ssize_t limit, max_fds;
	int sock;

	if (!PyArg_ParseTuple(args, "inn:receive", &sock, &limit, &max_fds))
		return NULL;
	return core_receive_packet(receiver, sock, limit, max_fds);
}
