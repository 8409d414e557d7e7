/* SPDX-License-Identifier: MIT */
/*
 * gdrpy._core._mapping.Mapping: a CPU view of memory, with the hot path in C.
 *
 * The address is given up only when it has no users: exported buffers and copies that run without
 * the GIL each count as one. close() refuses while there are any; _retire() refuses calls from then
 * on, and the last user gives the address up.
 */
#include "mapping.h"

#include <errno.h>
#include <structmember.h>
#include <sys/mman.h>

#include "common/forks.h"

/* The bytes of host memory that are unmapped at a time. */
#define PIECE ((size_t)64 << 20)

static bool refuse_closed(const char *method)
{
	return core_raise(core_error_closed, "%s: the mapping is closed", method);
}

bool core_mapping_usable(struct mapping *self, const char *method)
{
	if (self->generation != core_fork_generation)
		return core_raise(
			core_error_forked,
			"%s: this mapping belongs to the parent process; a forked child maps "
			"the region again, from its file descriptor",
			method);
	if (!__atomic_load_n(&self->address, __ATOMIC_RELAXED) || core_users_closed(&self->users))
		return refuse_closed(method);
	if (__atomic_load_n(&self->revoked, __ATOMIC_RELAXED))
		return core_raise(
			core_error_revoked,
			"%s: the GPU memory was freed by its owner, or its pin was closed: close "
			"the mapping",
			method);
	return true;
}

bool core_mapping_writable(struct mapping *self, const char *method)
{
	if (!core_mapping_usable(self, method))
		return false;
	if (self->readonly)
		return core_raise(
			core_error_readonly,
			"%s: the mapping is read-only; map with readonly=False, from a "
			"region that may be written: Region.from_fd(..., readonly=False), or "
			"one that a broker lets this user write",
			method);
	return true;
}

bool core_mapping_hold_checked(struct mapping *self, const char *method, uint64_t one)
{
	if (core_users_hold(&self->users, one))
		return true;
	core_mapping_settle(self); /* in case the last user went meanwhile */
	return refuse_closed(method);
}

bool core_mapping_hold(struct mapping *self, const char *method, uint64_t one)
{
	return core_mapping_usable(self, method) && core_mapping_hold_checked(self, method, one);
}

static PyObject *mapping_flush(struct mapping *self, PyObject *Py_UNUSED(unused))
{
	if (!core_mapping_usable(self, "Mapping.flush"))
		return NULL;
	core_store_fence();
	Py_RETURN_NONE;
}

static PyObject *mapping_begin_batch(struct mapping *self, PyObject *Py_UNUSED(unused))
{
	if (!core_mapping_usable(self, "Mapping.batch"))
		return NULL;
	__atomic_fetch_add(&self->batch, 1, __ATOMIC_RELAXED);
	Py_RETURN_NONE;
}

static PyObject *mapping_end_batch(struct mapping *self, PyObject *Py_UNUSED(unused))
{
	__atomic_fetch_sub(&self->batch, 1, __ATOMIC_RELAXED);
	core_store_fence();
	Py_RETURN_NONE;
}

static PyObject *mapping_revoke(struct mapping *self, PyObject *Py_UNUSED(unused))
{
	__atomic_store_n(&self->revoked, true, __ATOMIC_RELAXED);
	Py_RETURN_NONE;
}

/* Unmap host memory. munmap() takes 40 ms for a GiB, during which no other thread maps anything. */
static PyObject *unmap(struct core_map *map)
{
	size_t left = map->length;
	int error;

	Py_BEGIN_ALLOW_THREADS;
	for (; left > PIECE; left -= PIECE)
		madvise((char *)map->base + left - PIECE, PIECE, MADV_DONTNEED);
	error = core_map_undo(map);
	Py_END_ALLOW_THREADS;
	if (!error)
		Py_RETURN_NONE;
	errno = -error;
	return PyErr_SetFromErrno(PyExc_OSError);
}

static PyObject *release_once(struct mapping *self)
{
	PyObject *release = self->release, *keep = self->keep;
	PyObject *result;

	if (!__atomic_exchange_n(&self->address, NULL, __ATOMIC_ACQ_REL))
		Py_RETURN_NONE;
	self->release = self->keep = NULL;
	result = self->map.base ? unmap(&self->map) : PyObject_CallNoArgs(release);
	Py_DECREF(release);
	Py_XDECREF(keep);
	return result;
}

/* Release it where there is no caller to raise an error to. */
static void release_silently(struct mapping *self)
{
	PyObject *error, *value, *traceback, *result;

	PyErr_Fetch(&error, &value, &traceback);
	result = release_once(self);
	if (!result)
		PyErr_WriteUnraisable(NULL);
	Py_XDECREF(result);
	PyErr_Restore(error, value, traceback);
}

void core_mapping_settle(struct mapping *self)
{
	CORE_BEGIN_ALONE(self);
	if (self->retired && core_users_gone(&self->users) &&
	    self->generation == core_fork_generation)
		release_silently(self);
	CORE_END_ALONE();
}

static PyObject *mapping_close(struct mapping *self, void *Py_UNUSED(unused))
{
	int64_t views;

	if (!__atomic_load_n(&self->address, __ATOMIC_RELAXED))
		Py_RETURN_NONE;
	if (self->generation != core_fork_generation) {
		self->address = NULL; /* The pages were never mapped here. */
		Py_RETURN_NONE;
	}
	views = core_users_close(&self->users);
	if (views < 0) /* it is retired, or another thread is closing it and released the GIL */
		Py_RETURN_NONE;
	if (views)
		return PyErr_Format(PyExc_BufferError,
				    "Mapping.close: views or running copies still use the mapping "
				    "(%zd in all); "
				    "delete the numpy arrays and memoryviews made from it first",
				    (Py_ssize_t)views);
	return release_once(self);
}

CORE_ALONE(mapping_close, mapping)

static PyObject *mapping_retire(struct mapping *self, void *args)
{
	bool was_open = !core_users_closed(&self->users);
	PyObject *keep, *kept = self->keep, *released;

	if (!PyArg_ParseTuple(args, "O:_retire", &keep))
		return NULL;
	if (self->generation != core_fork_generation)
		self->address = NULL; /* The pages were never mapped here. */
	if (!self->address)
		Py_RETURN_FALSE;
	self->keep = Py_NewRef(keep);
	Py_XDECREF(kept);
	__atomic_store_n(&self->retired, true, __ATOMIC_RELAXED);
	if (core_users_retire(&self->users))
		return PyBool_FromLong(was_open);
	released = release_once(self);
	Py_XDECREF(released);
	return released ? Py_NewRef(Py_False) : NULL;
}

CORE_ALONE(mapping_retire, mapping)

static int mapping_getbuffer(struct mapping *self, Py_buffer *view, int flags)
{
	view->obj = NULL;
	if (!core_mapping_hold(self, "memoryview(Mapping)", CORE_ONE_VIEW))
		return -1;
	if (!PyBuffer_FillInfo(view, (PyObject *)self, self->address, self->nbytes, self->readonly,
			       flags))
		return 0;
	core_mapping_let_go(self, CORE_ONE_VIEW);
	return -1;
}

static void mapping_releasebuffer(struct mapping *self, Py_buffer *Py_UNUSED(view))
{
	core_mapping_let_go(self, CORE_ONE_VIEW);
}

static Py_ssize_t mapping_length(struct mapping *self)
{
	return self->nbytes;
}

static PyObject *mapping_closed(struct mapping *self, void *Py_UNUSED(unused))
{
	return PyBool_FromLong(!__atomic_load_n(&self->address, __ATOMIC_RELAXED) ||
			       core_users_closed(&self->users));
}

static PyObject *mapping_users(struct mapping *self, void *Py_UNUSED(unused))
{
	return PyLong_FromUnsignedLongLong(core_users_views(&self->users));
}

static PyObject *mapping_address(struct mapping *self, void *Py_UNUSED(unused))
{
	char *address;

	if (!core_mapping_enter(self, "Mapping.address"))
		return NULL;
	address = self->address;
	core_mapping_leave(self);
	return PyLong_FromVoidPtr(address);
}

void core_mapping_begin(struct mapping *self, char *address, Py_ssize_t nbytes,
			enum core_mapping_kind type, bool readonly, PyObject *release)
{
	self->address = address;
	self->nbytes = nbytes;
	self->type = type;
	self->readonly = readonly;
	self->generation = core_fork_generation;
	self->release = Py_NewRef(release);
}

static int mapping_init(struct mapping *self, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"address", "nbytes", "type",   "readonly", "release",
				"backend", "ptr",    "device", NULL};
	PyObject *release, *backend = Py_None, *ptr = Py_None, *device = Py_None;
	unsigned long long address;
	int type, readonly;
	Py_ssize_t nbytes;

	if (!core_init_once("Mapping", self->nbytes) ||
	    !PyArg_ParseTupleAndKeywords(args, kwargs, "KnipO|OOO:Mapping", names, &address,
					 &nbytes, &type, &readonly, &release, &backend, &ptr,
					 &device))
		return -1;
	if (!address || nbytes <= 0 || type <= CORE_MAPPING_NONE || type > CORE_MAPPING_DEVICE ||
	    !PyCallable_Check(release)) {
		PyErr_SetString(PyExc_ValueError,
				"Mapping: address, nbytes, type or release is out of range");
		return -1;
	}
	core_mapping_begin(self, (char *)(uintptr_t)address, nbytes, type, readonly, release);
	self->backend = Py_NewRef(backend);
	self->ptr = Py_NewRef(ptr);
	self->device = Py_NewRef(device);
	return 0;
}

/*
 * The garbage collector does not see `release`: it would clear what the call needs before it
 * deallocates the mapping. So release must not refer to the mapping, even indirectly.
 *
 * Buffers hold references to the mapping, so the address has no users left here.
 */
static void mapping_dealloc(struct mapping *self)
{
	if (self->generation == core_fork_generation)
		release_silently(self);
	Py_XDECREF(self->release);
	Py_XDECREF(self->keep);
	Py_XDECREF(self->backend);
	Py_XDECREF(self->ptr);
	Py_XDECREF(self->device);
	core_free_object(self);
}

static PyMethodDef mapping_methods[] = {
	{"write", CORE_FASTCALL(core_mapping_write),
	 "write(data, offset=0)\n--\n\n"
	 "Copy a contiguous buffer's bytes to byte `offset` and fence, unless in a batch().\n"
	 "data may also be a contiguous host array of any library, such as a torch tensor.\n\n"
	 "Raises ValueError outside the mapping, and for bytes of this mapping that overlap those\n"
	 "written; ReadOnly, Closed, Forked, Revoked."},
	{"read", CORE_FASTCALL(core_mapping_read),
	 "read(nbytes=None, offset=0)\n--\n\n"
	 "The `nbytes` bytes at `offset` (None: up to the end), as bytes."},
	{"readinto", CORE_FASTCALL(core_mapping_readinto),
	 "readinto(buffer, offset=0)\n--\n\n"
	 "Fill a writable contiguous buffer from byte `offset`; returns its length in bytes.\n"
	 "Raises ValueError as write() does."},
	{"write_many", (PyCFunction)core_mapping_write_many, METH_O,
	 "write_many(pieces)\n--\n\n"
	 "Copy many buffers, each to its own offset, and fence once, unless in a batch().\n\n"
	 "pieces is an iterable of pairs (offset in bytes, contiguous buffer). All are checked\n"
	 "before the first store. If pieces overlap, either one may remain. Bytes objects are\n"
	 "fastest. Raises as write() does, naming the piece; data from this mapping must not lie\n"
	 "between the first and the last byte written. TypeError if a piece is not a pair."},
	{"scatter", CORE_FASTCALL(core_mapping_scatter),
	 "scatter(offsets, records)\n--\n\n"
	 "Copy records[i] to byte offsets[i], for every i, and fence once, unless in a batch().\n\n"
	 "offsets are integers in one dimension; int64 arrays are not copied. records is a\n"
	 "C-contiguous buffer whose first dimension is as long: an array of a record dtype, or of\n"
	 "rows. All offsets are checked before the first store. If records overlap, either one\n"
	 "may remain. Raises as write() does, naming the offset."},
	{"write_strided", CORE_FASTCALL(core_mapping_write_strided),
	 "write_strided(data, pitch, offset=0)\n--\n\n"
	 "Copy row i of an array to byte offset + i * pitch, for every i, and fence once, unless\n"
	 "in a batch().\n\n"
	 "Args:\n"
	 "    data: The array. It may have any strides.\n"
	 "    pitch: The bytes from one row's beginning to the next one's, at least a row's.\n"
	 "    offset: The byte of the mapping at which the first row begins.\n\n"
	 "A row has one index in the first dimension: it is an element of a one-dimensional\n"
	 "array. Its bytes are those of its elements in C order. Bytes between rows are not\n"
	 "changed.\n\n"
	 "Raises ValueError if the rows do not fit, and as write() does."},
	{"readinto_strided", CORE_FASTCALL(core_mapping_readinto_strided),
	 "readinto_strided(buffer, pitch, offset=0)\n--\n\n"
	 "Fill row i of a writable array from byte offset + i * pitch, for every i; returns the\n"
	 "array's size in bytes.\n\n"
	 "Args:\n"
	 "    buffer: The array, whose rows are as in write_strided().\n"
	 "    pitch: The bytes from one row's beginning to the next one's, at least a row's.\n"
	 "    offset: The byte of the mapping at which the first row begins."},
	{"store", CORE_FASTCALL(core_mapping_store),
	 "store(offset, value, width=4)\n--\n\n"
	 "Store one aligned word, atomically, and fence unless in a batch().\n\n"
	 "Args:\n"
	 "    offset: The word's first byte.\n"
	 "    value: An int.\n"
	 "    width: The word's bytes, 4 or 8.\n\n"
	 "Raises ValueError if the value does not fit."},
	{"load", CORE_FASTCALL(core_mapping_load),
	 "load(offset, width=4)\n--\n\n"
	 "Load one aligned word of 4 or 8 bytes, atomically, as a non-negative int."},
	{"flush", (PyCFunction)mapping_flush, METH_NOARGS,
	 "flush()\n--\n\n"
	 "All stores made so far leave the CPU before any store that follows."},
	{"close", (PyCFunction)mapping_close_alone, METH_NOARGS,
	 "close()\n--\n\n"
	 "Unmap. May be called again. Raises BufferError while views of the mapping are alive."},
	{"_retire", (PyCFunction)mapping_retire_alone, METH_VARARGS,
	 "_retire(keep, /)\n--\n\n"
	 "Close it, and unmap when its last view is gone; `keep` is dropped then. Returns whether "
	 "it\n"
	 "was open and has views."},
	{"_of_memfd", core_map_memfd, METH_VARARGS | METH_CLASS, NULL},
	{"_begin_batch", (PyCFunction)mapping_begin_batch, METH_NOARGS, NULL},
	{"_end_batch", (PyCFunction)mapping_end_batch, METH_NOARGS, NULL},
	{"_revoke", (PyCFunction)mapping_revoke, METH_NOARGS, NULL},
	{NULL, NULL, 0, NULL},
};

static PyMemberDef mapping_members[] = {
	{"nbytes", T_PYSSIZET, offsetof(struct mapping, nbytes), READONLY, "Size in bytes."},
	{"readonly", T_BOOL, offsetof(struct mapping, readonly), READONLY,
	 "Whether stores are refused."},
	{"revoked", T_BOOL, offsetof(struct mapping, revoked), READONLY,
	 "Whether the memory is known to be freed: see Pin.revoked."},
	{"backend", T_OBJECT, offsetof(struct mapping, backend), READONLY,
	 "Name of the backend that made it."},
	{"ptr", T_OBJECT, offsetof(struct mapping, ptr), READONLY,
	 "GPU address of the first byte, or None in a process with only the CPU view."},
	{"device", T_OBJECT, offsetof(struct mapping, device), READONLY,
	 "CUDA ordinal of the device, or None without the GPU view."},
	{"_batch", T_INT, offsetof(struct mapping, batch), READONLY,
	 "Depth of nested batch() blocks."},
	{"_type", T_INT, offsetof(struct mapping, type), READONLY,
	 "Mapping type: 1 write-combined, 2 cached, 3 device."},
	{NULL, 0, 0, 0, NULL},
};

static PyGetSetDef mapping_getset[] = {
	{"closed", (getter)mapping_closed, NULL, "Whether close() has been called.", NULL},
	{"address", (getter)mapping_address, NULL,
	 "Virtual address of the first byte in this process.", NULL},
	{"_users", (getter)mapping_users, NULL,
	 "Views and running copies, during which close() refuses.", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot mapping_slots[] = {
	{Py_tp_doc, "A CPU view of a range of memory. Made by Region and Pin."},
	{Py_tp_init, mapping_init},
	{Py_tp_dealloc, mapping_dealloc},
	{Py_tp_methods, mapping_methods},
	{Py_tp_members, mapping_members},
	{Py_tp_getset, mapping_getset},
	{Py_sq_length, mapping_length},
	{Py_bf_getbuffer, mapping_getbuffer},
	{Py_bf_releasebuffer, mapping_releasebuffer},
	{0, NULL},
};

CORE_TYPE(mapping, "Mapping", Py_TPFLAGS_BASETYPE);
