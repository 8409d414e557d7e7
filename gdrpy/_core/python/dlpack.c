/* SPDX-License-Identifier: MIT */
/*
 * The capsule holds a table with the memory's address and a deleter. A consumer renames the capsule
 * and takes over the table. It may call the deleter from any thread, long after the capsule is
 * gone. Until then the table owns a reference to `owner`.
 */
#include "module.h"

#include <stdlib.h>

#include "dlpack_abi.h"

struct export {
	union {
		struct dl_managed managed;
		struct dl_managed_versioned versioned;
	};
	PyObject *owner;
	int64_t lengths[]; /* shape, then strides */
};

static void let_go(struct export *export)
{
	PyObject *error, *value, *traceback;
	PyGILState_STATE state;

	/* The interpreter is ending: the kernel releases everything. */
	if (!Py_IsInitialized())
		return;

	state = PyGILState_Ensure();
	PyErr_Fetch(&error, &value, &traceback);
	Py_DECREF(export->owner);
	PyErr_Restore(error, value, traceback);
	PyGILState_Release(state);
	free(export);
}

static void delete_managed(struct dl_managed *self)
{
	let_go(self->context);
}

static void delete_versioned(struct dl_managed_versioned *self)
{
	let_go(self->context);
}

static const char NAME[] = DL_NAME;
static const char VERSIONED_NAME[] = DL_VERSIONED_NAME;

/* A consumed capsule has another name. */
static void destroy_capsule(PyObject *capsule)
{
	const char *name = PyCapsule_GetName(capsule);

	if (name == NAME || name == VERSIONED_NAME)
		let_go(PyCapsule_GetPointer(capsule, name));
}

/* Fill in shape and the strides of a packed array; false with an exception set. */
static bool fill_lengths(int64_t *lengths, PyObject *shape, Py_ssize_t ndim)
{
	int64_t stride = 1;
	Py_ssize_t i;

	for (i = ndim - 1; i >= 0; i--) {
		Py_ssize_t length = core_as_size("dlpack", "shape", PyTuple_GetItem(shape, i), 0);

		if (length < 0)
			return false;
		lengths[i] = length;
		lengths[ndim + i] = stride;
		if (__builtin_mul_overflow(stride, length ? length : 1, &stride))
			return core_raise(PyExc_ValueError, "dlpack: shape %R overflows", shape);
	}
	return true;
}

const char core_dlpack_doc[] =
	"dlpack(address, device_type, device_id, shape, code, bits, readonly, owner, versioned,\n"
	"       copied=False)\n--\n\n"
	"A DLPack capsule of packed memory; `owner` is kept alive until its consumer is done.";

PyObject *core_dlpack(PyObject *Py_UNUSED(module), PyObject *args)
{
	int device_type, device_id, readonly, versioned, copied = false;
	struct dl_tensor tensor = {.dtype_lanes = 1};
	PyObject *shape, *owner, *capsule;
	unsigned long long address;
	unsigned char code, bits;
	struct export *export;
	Py_ssize_t ndim;

	if (!PyArg_ParseTuple(args, "KiiO!bbpOp|p:dlpack", &address, &device_type, &device_id,
			      &PyTuple_Type, &shape, &code, &bits, &readonly, &owner, &versioned,
			      &copied))
		return NULL;
	ndim = PyTuple_Size(shape);
	if (ndim > DL_MAX_DIMENSIONS || (readonly && !versioned))
		return PyErr_Format(PyExc_ValueError, "dlpack: too many dimensions, or read-only "
						      "memory in a capsule that cannot say so");

	export = malloc(sizeof(*export) + 2 * (size_t)ndim * sizeof(int64_t));
	if (!export)
		return PyErr_NoMemory();
	if (!fill_lengths(export->lengths, shape, ndim))
		goto free_export;

	tensor.data = (void *)(uintptr_t)address;
	tensor.device_type = device_type;
	tensor.device_id = device_id;
	tensor.ndim = (int32_t)ndim;
	tensor.dtype_code = code;
	tensor.dtype_bits = bits;
	tensor.shape = export->lengths;
	tensor.strides = export->lengths + ndim;
	if (versioned)
		export->versioned = (struct dl_managed_versioned){
			.major = DL_MAJOR,
			.minor = DL_MINOR,
			.context = export,
			.deleter = delete_versioned,
			.flags = (readonly ? DL_READ_ONLY : 0) | (copied ? DL_COPIED : 0),
			.tensor = tensor,
		};
	else
		export->managed = (struct dl_managed){
			.tensor = tensor,
			.context = export,
			.deleter = delete_managed,
		};

	capsule = PyCapsule_New(export, versioned ? VERSIONED_NAME : NAME, destroy_capsule);
	if (!capsule)
		goto free_export;
	export->owner = Py_NewRef(owner);
	return capsule;

free_export:
	free(export);
	return NULL;
}
