/* SPDX-License-Identifier: MIT */
/*
 * The extension module gdrpy._core._packet: sends or receives one packet of a Unix socket, with
 * file descriptors, in one call. A call waits only on a blocking socket. groups() is here because
 * Python's getsockopt() has room for 256 of them.
 */
#define _GNU_SOURCE
#include "packet.h"

#include <errno.h>
#include <unistd.h>

/* Copy the descriptors of a sequence to out; returns how many, or -1 with an exception set. */
static Py_ssize_t take_fds(PyObject *sequence, int *out)
{
	Py_ssize_t count = PySequence_Size(sequence), i;

	if (count > CORE_MAX_FDS) {
		PyErr_Format(PyExc_ValueError, "%zd descriptors are more than the %d of a packet",
			     count, CORE_MAX_FDS);
		return -1;
	}
	for (i = 0; i < count; i++) {
		PyObject *item = PySequence_GetItem(sequence, i);

		if (!item)
			return -1;
		out[i] = (int)PyLong_AsLong(item);
		Py_DECREF(item);
		if (out[i] == -1 && PyErr_Occurred())
			return -1;
	}
	return count;
}

/* Send one packet; -1 with an exception set. */
static int send_packet(int sock, const Py_buffer *data, const int *fds, Py_ssize_t count)
{
	struct iovec iov = {.iov_base = data->buf, .iov_len = (size_t)data->len};
	struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
	union core_control control;
	ssize_t sent;

	if (count) {
		struct cmsghdr *header = &control.align;

		memset(header, 0, sizeof(*header));
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
		memcpy(CMSG_DATA(header), fds, (size_t)count * sizeof(int));
		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
	}
	do {
		Py_BEGIN_ALLOW_THREADS;
		sent = sendmsg(sock, &message, MSG_NOSIGNAL);
		Py_END_ALLOW_THREADS;
	} while (sent < 0 && errno == EINTR && !PyErr_CheckSignals());
	if (sent < 0 && !PyErr_Occurred())
		PyErr_SetFromErrno(PyExc_OSError);
	return sent < 0 ? -1 : 0;
}

static PyObject *packet_send(PyObject *Py_UNUSED(module), PyObject *args)
{
	int sock, fds[CORE_MAX_FDS], error = -1;
	PyObject *sequence;
	Py_ssize_t count;
	Py_buffer data;

	if (!PyArg_ParseTuple(args, "iy*O:send", &sock, &data, &sequence))
		return NULL;
	count = take_fds(sequence, fds);
	if (count >= 0)
		error = send_packet(sock, &data, fds, count);
	PyBuffer_Release(&data);
	if (error)
		return NULL;
	Py_RETURN_NONE;
}

static ssize_t take_packet(int sock, struct msghdr *message, int *fds, Py_ssize_t *count)
{
	ssize_t size = recvmsg(sock, message, MSG_CMSG_CLOEXEC);

	*count = size < 0 ? 0 : core_find_fds(message, fds);
	return size;
}

/* A list of descriptor numbers, which the caller then owns. They are closed on failure. */
static PyObject *list_fds(const int *fds, Py_ssize_t count)
{
	PyObject *list = PyList_New(count);
	Py_ssize_t i;

	for (i = 0; list && i < count; i++) {
		PyObject *number = PyLong_FromLong(fds[i]);

		if (!number)
			Py_CLEAR(list);
		else
			PyList_SetItem(list, i, number);
	}
	while (!list && count)
		close(fds[--count]);
	return list;
}

static const struct core_receiver receiver = {
	.take = take_packet,
	.own = list_fds,
	.close = close,
};

static PyObject *packet_receive(PyObject *Py_UNUSED(module), PyObject *args)
{
	return core_receive_by(&receiver, args);
}

static PyObject *tuple_of_groups(const gid_t *groups, Py_ssize_t count)
{
	PyObject *tuple = PyTuple_New(count);
	Py_ssize_t i;

	for (i = 0; tuple && i < count; i++) {
		PyObject *number = PyLong_FromUnsignedLong(groups[i]);

		if (!number || PyTuple_SetItem(tuple, i, number))
			Py_CLEAR(tuple);
	}
	return tuple;
}

static PyObject *packet_groups(PyObject *Py_UNUSED(module), PyObject *args)
{
	PyObject *result;
	unsigned int most;
	socklen_t size;
	gid_t *groups;
	int sock;

	if (!PyArg_ParseTuple(args, "iI:groups", &sock, &most))
		return NULL;
	size = most * sizeof(*groups);
	groups = PyMem_Malloc(size);
	if (!groups)
		return PyErr_NoMemory();
	if (getsockopt(sock, SOL_SOCKET, SO_PEERGROUPS, groups, &size))
		result = PyErr_SetFromErrno(PyExc_OSError);
	else
		result = tuple_of_groups(groups, (Py_ssize_t)(size / sizeof(*groups)));
	PyMem_Free(groups);
	return result;
}

static PyMethodDef functions[] = {
	{"send", packet_send, METH_VARARGS,
	 "send(sock, data, fds, /)\n--\n\nSend one packet. Raises OSError."},
	{"receive", packet_receive, METH_VARARGS,
	 "receive(sock, limit, max_fds, /)\n--\n\n"
	 "One packet: its bytes, its descriptors (the caller's), recvmsg's flags. Raises OSError."},
	{"groups", packet_groups, METH_VARARGS,
	 "groups(sock, most, /)\n--\n\n"
	 "The peer's supplementary groups when it connected. Raises OSError, ERANGE for too many."},
	{NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
	PyModuleDef_HEAD_INIT,
	.m_name = "gdrpy._core._packet",
	.m_doc = "Packets of Unix sockets with file descriptors.",
	.m_size = 0,
	.m_methods = functions,
};

PyMODINIT_FUNC PyInit__packet(void);

PyMODINIT_FUNC PyInit__packet(void)
{
	return core_create_module(&definition);
}
