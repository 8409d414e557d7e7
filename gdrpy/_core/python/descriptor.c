/* SPDX-License-Identifier: MIT */
/*
 * gdrpy._core._mapping.Descriptor, and the packets of a broker, which deliver such objects.
 *
 * No signal handler runs between a packet's arrival and the creation of its objects: Python's
 * handlers run between bytecodes, and this is one call. Forked children keep no descriptor,
 * whenever the fork happens.
 */
#define _GNU_SOURCE 1

#include "module.h"

#include <errno.h>
#include <fcntl.h>

#include "common/forks.h"
#include "packet.h"

/* cuMemExportToShareableHandle(), and CUmemAllocationHandleType's file descriptors. */
typedef int (*export_function)(void *fd, uint64_t handle, int type, unsigned long long flags);
#define CORE_CUDA_POSIX 1

struct descriptor {
	PyObject_HEAD int fd; /* private; -1 for none */
	unsigned int generation;
};

PyTypeObject *core_descriptor_type_object;

/* Give the descriptor up, for core_private_close(); -1 if it is closed, or a parent's. */
static int give_up(struct descriptor *self)
{
	int fd = self->generation == core_fork_generation ? self->fd : -1;

	self->fd = -1;
	return fd;
}

/* Closing the last descriptor of memory takes long. */
static void close_fd(int fd)
{
	Py_BEGIN_ALLOW_THREADS;
	core_private_close(fd);
	Py_END_ALLOW_THREADS;
}

/* An object that owns a private descriptor, or -1. On failure, the descriptor is closed. */
static PyObject *own(PyTypeObject *type, int fd)
{
	struct descriptor *self = (struct descriptor *)PyType_GenericAlloc(type, 0);

	if (!self) {
		if (fd >= 0)
			core_private_close(fd);
		return NULL;
	}
	self->fd = fd;
	self->generation = core_fork_generation;
	return (PyObject *)self;
}

PyObject *core_descriptor_own(int fd)
{
	return own(core_descriptor_type_object, fd);
}

static PyObject *descriptor_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
	int fd;

	if (!PyArg_ParseTuple(args, "i:Descriptor", &fd))
		return NULL;
	if (fd < 0)
		return PyErr_Format(PyExc_ValueError, "%d is not a file descriptor", fd);
	if (core_private_note(fd) < 0)
		return PyErr_NoMemory();
	return own(type, fd);
}

static PyObject *descriptor_duplicate(PyObject *type, PyObject *args)
{
	int fd;

	if (!PyArg_ParseTuple(args, "i:Descriptor.duplicate", &fd))
		return NULL;
	fd = core_private_duplicate(fd);
	return fd < 0 ? PyErr_SetFromErrno(PyExc_OSError) : own((PyTypeObject *)type, fd);
}

/* Have an object without a descriptor own one. Takes both; NULL with an exception set. */
static PyObject *own_note(PyObject *object, int fd)
{
	struct descriptor *self = (struct descriptor *)object;

	self->fd = core_private_note(fd);
	if (self->fd >= 0)
		return object;
	Py_DECREF(object);
	return PyErr_NoMemory();
}

/* The object is made before the call, after which no memory is needed. */
static PyObject *descriptor_opened(PyObject *type, PyObject *args)
{
	PyObject *function = PyTuple_GetItem(args, 0), *self, *rest, *opened;
	long fd;

	rest = function ? PyTuple_GetSlice(args, 1, PyTuple_Size(args)) : NULL;
	if (!rest)
		return NULL;
	self = own((PyTypeObject *)type, -1);
	opened = self ? PyObject_CallObject(function, rest) : NULL;
	fd = opened ? PyLong_AsLong(opened) : -1;
	Py_XDECREF(opened);
	Py_DECREF(rest);
	if (fd >= 0)
		return own_note(self, (int)fd);
	if (!PyErr_Occurred())
		PyErr_Format(PyExc_ValueError, "%ld is not a file descriptor", fd);
	Py_XDECREF(self);
	return NULL;
}

/* cuda.bindings loses a descriptor if it then has no memory for the objects that it returns. */
static PyObject *descriptor_exported(PyObject *type, PyObject *args)
{
	unsigned long long function, handle;
	int fd = -1, result;
	PyObject *self;

	if (!PyArg_ParseTuple(args, "KK:Descriptor.exported", &function, &handle))
		return NULL;
	self = own((PyTypeObject *)type, -1);
	if (!self)
		return NULL;
	Py_BEGIN_ALLOW_THREADS; /* the driver may wait for a call that waits for another thread */
	result = ((export_function)(uintptr_t)function)(&fd, handle, CORE_CUDA_POSIX, 0);
	Py_END_ALLOW_THREADS;
	if (result) {
		Py_DECREF(self);
		return PyLong_FromLong(result);
	}
	fcntl(fd, F_SETFD, FD_CLOEXEC);
	return own_note(self, fd);
}

static void descriptor_dealloc(struct descriptor *self)
{
	int fd = give_up(self);

	if (fd >= 0)
		close_fd(fd);
	core_free_object(self);
}

static PyObject *descriptor_fileno(struct descriptor *self, PyObject *Py_UNUSED(unused))
{
	if (self->fd >= 0 && self->generation == core_fork_generation)
		return PyLong_FromLong(self->fd);
	return PyErr_Format(PyExc_ValueError, "the descriptor is closed");
}

static PyObject *descriptor_close(struct descriptor *self, PyObject *Py_UNUSED(unused))
{
	int fd = give_up(self);

	if (fd >= 0)
		close_fd(fd);
	Py_RETURN_NONE;
}

static PyMethodDef descriptor_methods[] = {
	{"duplicate", descriptor_duplicate, METH_VARARGS | METH_CLASS,
	 "duplicate(fd, /)\n--\n\nOwn a duplicate of a descriptor. Raises OSError."},
	{"opened", descriptor_opened, METH_VARARGS | METH_CLASS,
	 "opened(function, /, *args)\n--\n\nOwn the descriptor that function(*args) opens."},
	{"exported", descriptor_exported, METH_VARARGS | METH_CLASS,
	 "exported(function, handle, /)\n--\n\n"
	 "Own a new descriptor of an allocation's handle, which cuMemExportToShareableHandle() at\n"
	 "the address `function` makes. Returns its CUresult instead if it fails."},
	{"fileno", (PyCFunction)descriptor_fileno, METH_NOARGS,
	 "fileno()\n--\n\nIts number; the object remains the owner."},
	{"close", (PyCFunction)descriptor_close, METH_NOARGS,
	 "close()\n--\n\nClose it. May be called again."},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot descriptor_slots[] = {
	{Py_tp_doc, "Descriptor(fd)\n--\n\nOwns a file descriptor that forked children close."},
	{Py_tp_new, descriptor_new},
	{Py_tp_dealloc, descriptor_dealloc},
	{Py_tp_methods, descriptor_methods},
	{0, NULL},
};

CORE_TYPE(descriptor, "Descriptor", 0);

/* A list of objects that own descriptors, None for a lost one. On failure, all are closed. */
static PyObject *list_fds(const int *fds, Py_ssize_t count)
{
	PyObject *list = PyList_New(count);
	Py_ssize_t i;

	for (i = 0; i < count; i++) {
		PyObject *one = NULL;

		if (!list)
			core_private_close(fds[i]);
		else
			one = fds[i] < 0 ? Py_NewRef(Py_None) : core_descriptor_own(fds[i]);
		if (!one)
			Py_CLEAR(list);
		else
			PyList_SetItem(list, i, one);
	}
	return list;
}

/*
 * Receive a packet and make its descriptors private, with -1 for those lost for lack of memory.
 * Returns its size, or -1 with errno set.
 */
static ssize_t take_packet(int sock, struct msghdr *message, int *fds, Py_ssize_t *count)
{
	const int *numbers = (const int *)CMSG_DATA((struct cmsghdr *)message->msg_control);
	struct core_arrival arrival = {
		.fds = numbers,
		.count = (int)((message->msg_controllen - CMSG_LEN(0)) / sizeof(*fds)),
	};
	ssize_t size;
	int error;

	memset(message->msg_control, -1, message->msg_controllen);
	core_arrival_begin(&arrival);
	size = recvmsg(sock, message, MSG_CMSG_CLOEXEC);
	error = errno;
	*count = size < 0 ? 0 : core_find_fds(message, fds);
	core_arrival_end(&arrival, fds, (int)*count);
	for (Py_ssize_t i = 0; i < *count; i++)
		if (fds[i] < 0)
			message->msg_flags |= MSG_CTRUNC;
	errno = error;
	return size;
}

static const struct core_receiver receiver = {
	.take = take_packet,
	.own = list_fds,
	.close = core_private_close,
};

PyObject *core_receive(PyObject *Py_UNUSED(module), PyObject *args)
{
	return core_receive_by(&receiver, args);
}

/* Send a packet; -1 with an exception set. */
static int send_packet(int sock, const Py_buffer *data)
{
	ssize_t sent;

	do {
		Py_BEGIN_ALLOW_THREADS;
		sent = send(sock, data->buf, (size_t)data->len, MSG_NOSIGNAL);
		Py_END_ALLOW_THREADS;
	} while (sent < 0 && errno == EINTR && !PyErr_CheckSignals());
	if (sent >= 0)
		return 0;
	if (errno == EPIPE) /* the peer closed before it read the packet */
		errno = ECONNRESET;
	if (!PyErr_Occurred())
		PyErr_SetFromErrno(PyExc_OSError);
	return -1;
}

PyObject *core_exchange(PyObject *Py_UNUSED(module), PyObject *args)
{
	Py_ssize_t limit, max_fds;
	Py_buffer data;
	int sock, error;

	if (!PyArg_ParseTuple(args, "iy*nn:exchange", &sock, &data, &limit, &max_fds))
		return NULL;
	error = send_packet(sock, &data);
	PyBuffer_Release(&data);
	return error ? NULL : core_receive_packet(&receiver, sock, limit, max_fds);
}
