/* SPDX-License-Identifier: MIT */
/*
 * Mappings of sealed memory files, made in one call: the way in which a process opens what a broker
 * hands it. Such a mapping unmaps itself; what it keeps alive meanwhile is its `release`.
 */
#define _GNU_SOURCE 1

#include "mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

/* A peer that could shrink the memory could kill its users by SIGBUS. */
#define FIXED_SIZE (F_SEAL_SHRINK | F_SEAL_GROW)

/* The bytes of a memory file of a fixed size; 0 for any other descriptor. */
PyObject *gdr_sealed_size(PyObject *Py_UNUSED(module), PyObject *descriptor)
{
	struct stat status;
	int fd = (int)PyLong_AsLong(descriptor);
	int seals;

	if (fd == -1 && PyErr_Occurred())
		return NULL;
	seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || (seals & FIXED_SIZE) != FIXED_SIZE || fstat(fd, &status))
		return PyLong_FromLong(0);
	return PyLong_FromLongLong(status.st_size);
}

PyObject *gdr_map_memfd(PyObject *type, PyObject *args)
{
	PyObject *keep, *backend, *ptr, *device;
	unsigned long long offset;
	struct mapping *self;
	struct gdr_map map;
	Py_ssize_t nbytes;
	int fd, readonly, error;

	if (!PyArg_ParseTuple(args, "iKnpOOOO:Mapping._of_memfd", &fd, &offset, &nbytes, &readonly,
			      &keep, &backend, &ptr, &device))
		return NULL;

	error = gdr_map_fd(&map, fd, gdr_map_pages(&map, offset, (size_t)nbytes), offset, readonly);
	if (error) {
		errno = -error;
		return PyErr_SetFromErrno(PyExc_OSError);
	}
	self = (struct mapping *)PyType_GenericAlloc((PyTypeObject *)type, 0);
	if (!self) {
		gdr_map_undo(&map);
		return NULL;
	}
	gdr_mapping_begin(self, map.address, nbytes, GDR_MAPPING_CACHED, readonly, keep);
	gdr_mapping_name(self, backend, ptr, device);
	self->map = map;
	return (PyObject *)self;
}
