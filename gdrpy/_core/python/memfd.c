/* SPDX-License-Identifier: MIT */
/*
 * Mappings of sealed memory files. Such a mapping unmaps itself; its `release` is the object that
 * it keeps alive.
 */
#define _GNU_SOURCE 1

#include "common/forks.h"
#include "mapping.h"
#include "module.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* A peer that could shrink the memory could kill its users with SIGBUS. */
#define FIXED_SIZE (F_SEAL_SHRINK | F_SEAL_GROW)

/*
 * The size of a memory file of a fixed size; 0 for any other descriptor, and for a file of huge
 * pages: only whole pages of it can be mapped, and an access raises SIGBUS if none is free.
 */
static long long fixed_size(int fd)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct statfs system;
	struct stat status;

	if (seals < 0 || (seals & FIXED_SIZE) != FIXED_SIZE || fstat(fd, &status))
		return 0;
	/* Blocks of a tmpfs are pages, or larger if it allows transparent huge pages. */
	if (status.st_blksize > sysconf(_SC_PAGESIZE) &&
	    (fstatfs(fd, &system) || system.f_type != TMPFS_MAGIC))
		return 0;
	return status.st_size;
}

PyObject *core_fixed_size(PyObject *Py_UNUSED(module), PyObject *descriptor)
{
	int fd = (int)PyLong_AsLong(descriptor);

	if (fd == -1 && PyErr_Occurred())
		return NULL;
	return PyLong_FromLongLong(fixed_size(fd));
}

PyObject *core_duplicate_memfd(PyObject *Py_UNUSED(module), PyObject *descriptor)
{
	int fd = (int)PyLong_AsLong(descriptor);
	long long nbytes;
	PyObject *own;

	if (fd == -1 && PyErr_Occurred())
		return NULL;
	fd = core_private_duplicate(fd);
	if (fd < 0 && errno != EBADF)
		return PyErr_SetFromErrno(PyExc_OSError);
	nbytes = fixed_size(fd);
	if (!nbytes) {
		core_private_close(fd);
		Py_RETURN_NONE;
	}
	own = core_descriptor_own(fd);
	return own ? Py_BuildValue("NL", own, nbytes) : NULL;
}

PyObject *core_lend_private(PyObject *Py_UNUSED(module), PyObject *descriptor)
{
	int fd = (int)PyLong_AsLong(descriptor);

	if (fd == -1 && PyErr_Occurred())
		return NULL;
	core_private_lend(fd);
	Py_RETURN_NONE;
}

PyObject *core_take_back_private(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
	core_private_take_back();
	Py_RETURN_NONE;
}

PyObject *core_map_memfd(PyObject *type, PyObject *args)
{
	PyObject *keep, *backend;
	unsigned long long offset;
	struct mapping *self;
	struct core_map map;
	Py_ssize_t nbytes;
	int fd, readonly;

	if (!PyArg_ParseTuple(args, "iKnpOO:Mapping._of_memfd", &fd, &offset, &nbytes, &readonly,
			      &keep, &backend))
		return NULL;
	errno = -core_map_fd(&map, fd, core_map_pages(&map, offset, (size_t)nbytes), offset,
			     readonly, NULL);
	if (errno)
		return PyErr_SetFromErrno(PyExc_OSError);
	self = (struct mapping *)PyType_GenericAlloc((PyTypeObject *)type, 0);
	if (!self) {
		core_map_undo(&map);
		return NULL;
	}
	core_mapping_begin(self, map.address, nbytes, CORE_MAPPING_CACHED, readonly, keep);
	self->map = map;
	self->backend = Py_NewRef(backend);
	self->ptr = Py_NewRef(Py_None);
	self->device = Py_NewRef(Py_None);
	return (PyObject *)self;
}
