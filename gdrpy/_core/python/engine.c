/* SPDX-License-Identifier: MIT */
/* The copy engine for Python: GPU memory in it as a capsule, and whether there is one. */
#include "transfers.h"

#include <stdlib.h>

PyTypeObject *core_transfers_type_object;
const char core_engine_capsule[] = "gdrpy.engine";

void *core_raise_failure(const struct core_error *error)
{
	PyObject *module = PyImport_ImportModule("gdrpy._core.calls");
	PyObject *raised;

	if (module) {
		raised = PyObject_CallMethod(module, "failure_at", "K",
					     (unsigned long long)(uintptr_t)error);
		if (raised)
			PyErr_SetObject((PyObject *)Py_TYPE(raised), raised);
		Py_XDECREF(raised);
		Py_DECREF(module);
	}
	return NULL;
}

struct core_use core_transfers_use_engine(struct transfers *self)
{
	core_store_fence();
	self->running++;
	return (struct core_use){Py_NewRef(self->engine_capsule), self->engine};
}

void core_transfers_end_use(struct transfers *self, const struct core_use *use)
{
	core_transfers_end(self);
	Py_DECREF(use->capsule);
}

bool core_raise_own(const char *method)
{
	return core_raise(PyExc_ValueError, "%s: the bytes to copy are the region's own", method);
}

bool core_transfers_between(struct transfers *self, struct transfers *other, Py_ssize_t start,
			    const struct core_copy *copy, bool to_write)
{
	uint64_t offset = (uint64_t)copy->offset, nbytes = (uint64_t)copy->nbytes;
	uint64_t there = (uint64_t)start;
	struct core_error error;
	struct core_use own, others;
	int ret;

	if (self == other ||
	    core_engine_overlap(self->engine, offset, other->engine, there, nbytes))
		return core_raise_own(copy->method);
	own = core_transfers_use_engine(self);
	others = core_transfers_use_engine(other);
	Py_BEGIN_ALLOW_THREADS;
	ret = to_write ? core_engine_copy(own.memory, offset, others.memory, there, nbytes, &error)
		       : core_engine_copy(others.memory, there, own.memory, offset, nbytes, &error);
	Py_END_ALLOW_THREADS;
	core_transfers_end_use(other, &others);
	core_transfers_end_use(self, &own);
	return !ret || core_raise_failure(&error);
}

PyObject *core_transfers_fill(struct transfers *self, PyObject *args)
{
	struct core_copy copy = {0};
	struct core_error error;
	unsigned char value;
	struct core_use use;
	int ret;

	if (!PyArg_ParseTuple(args, "sbnn:_fill_by_engine", &copy.method, &value, &copy.offset,
			      &copy.nbytes) ||
	    !core_transfers_ready(self, copy.method, true, CORE_BY_ENGINE) ||
	    !core_transfers_range(self, &copy))
		return NULL;
	use = core_transfers_use_engine(self);
	Py_BEGIN_ALLOW_THREADS;
	ret = core_engine_fill(use.memory, (uint64_t)copy.offset, value, (uint64_t)copy.nbytes,
			       &error);
	Py_END_ALLOW_THREADS;
	core_transfers_end_use(self, &use);
	if (ret)
		return core_raise_failure(&error);
	Py_RETURN_NONE;
}

static void release(PyObject *capsule)
{
	struct core_engine_memory *memory = PyCapsule_GetPointer(capsule, core_engine_capsule);

	Py_BEGIN_ALLOW_THREADS; /* a link that is made anew may take seconds */
	core_engine_release(memory);
	Py_END_ALLOW_THREADS;
}

static bool parse_gpu(PyObject *object, struct core_rm_gpu *gpu)
{
	return PyArg_ParseTuple(object, "IBB:gpu", &gpu->pci_domain, &gpu->pci_bus, &gpu->pci_slot);
}

/* New blocks from a list of tuples; NULL with an exception set. */
static struct core_engine_block *parse_blocks(PyObject *list)
{
	Py_ssize_t count = PyList_Size(list);
	struct core_engine_block *blocks =
		count < 0 ? NULL : calloc((size_t)count + 1, sizeof(*blocks));

	if (!blocks && count >= 0)
		PyErr_NoMemory();
	for (Py_ssize_t i = 0; blocks && i < count; i++) {
		unsigned long long offset, nbytes;

		if (!PyArg_ParseTuple(PyList_GetItem(list, i), "IIKK:blocks", &blocks[i].client,
				      &blocks[i].object, &offset, &nbytes)) {
			free(blocks);
			return NULL;
		}
		blocks[i].offset = offset;
		blocks[i].nbytes = nbytes;
	}
	return blocks;
}

PyObject *core_engine_reach(PyObject *Py_UNUSED(module), PyObject *args)
{
	struct core_engine_block *blocks;
	struct core_engine_memory *memory;
	struct core_error error;
	struct core_rm_gpu gpu = {0};
	unsigned long long nbytes, address, buffer_id;
	PyObject *gpu_object, *list, *capsule;
	unsigned int count;
	int fd;

	if (!PyArg_ParseTuple(args, "iKKKO!O!:engine_reach", &fd, &nbytes, &address, &buffer_id,
			      &PyTuple_Type, &gpu_object, &PyList_Type, &list))
		return NULL;
	if (fd < 0 && !parse_gpu(gpu_object, &gpu))
		return NULL;
	count = (unsigned int)PyList_Size(list);
	blocks = parse_blocks(list);
	if (!blocks)
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	memory = fd < 0 ? core_engine_take_blocks(&gpu, blocks, count, &error)
			: core_engine_take_export(fd, nbytes, &error);
	Py_END_ALLOW_THREADS;
	free(blocks);
	if (!memory)
		return core_raise_failure(&error);
	core_engine_set_place(memory, address, buffer_id);
	capsule = PyCapsule_New(memory, core_engine_capsule, release);
	if (!capsule)
		core_engine_release(memory);
	return capsule;
}

static const char registration_capsule[] = "gdrpy.registration";

/* A registration, and the buffer that it keeps alive. */
struct registered {
	struct core_registration *registration;
	PyObject *object;
	struct core_bytes bytes;
};

static void unregister(PyObject *capsule)
{
	struct registered *registered = PyCapsule_GetPointer(capsule, registration_capsule);

	Py_BEGIN_ALLOW_THREADS;
	core_engine_unregister(registered->registration);
	Py_END_ALLOW_THREADS;
	core_release_bytes(&registered->bytes);
	Py_DECREF(registered->object);
	free(registered);
}

PyObject *core_engine_register_buffer(PyObject *Py_UNUSED(module), PyObject *buffer)
{
	struct registered *registered = calloc(1, sizeof(*registered));
	struct core_bytes *bytes;
	struct core_error error;
	PyObject *capsule;

	if (!registered)
		return PyErr_NoMemory();
	bytes = &registered->bytes;
	/* Pages pinned for reading alone are not the ones that a later store makes. */
	if (!core_get_bytes("register", "buffer", buffer, !PyBytes_CheckExact(buffer), bytes))
		goto free_registered;
	if (!bytes->nbytes) {
		PyErr_SetString(PyExc_ValueError, "register: buffer has no bytes");
		goto release_bytes;
	}
	registered->registration = core_engine_register(bytes->data, (size_t)bytes->nbytes,
							PyBytes_CheckExact(buffer), &error);
	if (!registered->registration) {
		core_raise_failure(&error);
		goto release_bytes;
	}
	registered->object = Py_NewRef(buffer);
	capsule = PyCapsule_New(registered, registration_capsule, unregister);
	if (capsule)
		return capsule;
	core_engine_unregister(registered->registration);
	Py_DECREF(registered->object);
release_bytes:
	core_release_bytes(bytes);
free_registered:
	free(registered);
	return NULL;
}

PyObject *core_engine_status(PyObject *Py_UNUSED(module), PyObject *wanted)
{
	struct core_rm_gpu gpu = {0};
	struct core_error error;
	char text[128];
	int ret;

	if (wanted != Py_None && !parse_gpu(wanted, &gpu))
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	ret = core_engine_describe(wanted == Py_None ? NULL : &gpu, text, &error);
	Py_END_ALLOW_THREADS;
	return ret ? core_raise_failure(&error) : PyUnicode_FromString(text);
}
