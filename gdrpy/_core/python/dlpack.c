/* SPDX-License-Identifier: MIT */
/* DLPack capsules: memory handed to other array libraries, and taken from them. */
#include "module.h"

#include <stdlib.h>

#define DL_NAME "dltensor"
#define DL_VERSIONED_NAME "dltensor_versioned"

#define DL_MAX_DIMENSIONS 64

/* The layouts are the public ABI of DLPack 1.x; only the names are ours. */
struct dl_tensor {
	void *data;
	int32_t device_type;
	int32_t device_id;
	int32_t ndim;
	uint8_t dtype_code;
	uint8_t dtype_bits;
	uint16_t dtype_lanes;
	int64_t *shape;
	int64_t *strides; /* in elements */
	uint64_t byte_offset;
};

struct dl_managed {
	struct dl_tensor tensor;
	void *context;
	void (*deleter)(struct dl_managed *self);
};

#define DL_MAJOR 1
#define DL_MINOR 1 /* the first with 8-bit floats */
#define DL_READ_ONLY UINT64_C(1)
#define DL_COPIED UINT64_C(2)

struct dl_managed_versioned {
	uint32_t major;
	uint32_t minor;
	void *context;
	void (*deleter)(struct dl_managed_versioned *self);
	uint64_t flags;
	struct dl_tensor tensor;
};

/*
 * An exported capsule holds a table with the memory's address and a deleter. A consumer renames the
 * capsule and takes over the table. It may call the deleter from any thread, long after the capsule
 * is gone. Until then the table owns a reference to `owner`.
 */
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

/*
 * Import takes over a capsule's table and describes it to Python. Our own capsule around the table
 * keeps the memory; its destructor calls the table's deleter.
 */
static const char KEPT[] = "gdrpy.dlpack";
static const char KEPT_VERSIONED[] = "gdrpy.dlpack_versioned";

/* The deleter may run Python code, which must not see a pending exception. */
static void give_back(PyObject *capsule)
{
	PyObject *error, *value, *traceback;

	PyErr_Fetch(&error, &value, &traceback);
	if (PyCapsule_IsValid(capsule, KEPT_VERSIONED)) {
		struct dl_managed_versioned *table = PyCapsule_GetPointer(capsule, KEPT_VERSIONED);

		if (table->deleter)
			table->deleter(table);
	} else {
		struct dl_managed *table = PyCapsule_GetPointer(capsule, KEPT);

		if (table->deleter)
			table->deleter(table);
	}
	PyErr_Restore(error, value, traceback);
}

/* Take over the table in a producer's capsule; NULL with an exception set. */
static PyObject *take_over(PyObject *capsule, bool versioned)
{
	void *table = PyCapsule_GetPointer(capsule, versioned ? DL_VERSIONED_NAME : DL_NAME);
	PyObject *kept;

	if (!table)
		return NULL;
	kept = PyCapsule_New(table, versioned ? KEPT_VERSIONED : KEPT, NULL);
	if (!kept)
		return NULL;
	if (PyCapsule_SetName(capsule, versioned ? "used_" DL_VERSIONED_NAME : "used_" DL_NAME) ||
	    PyCapsule_SetDestructor(kept, give_back)) {
		Py_DECREF(kept);
		return NULL;
	}
	return kept;
}

/* A tuple of ints; None for a NULL array. */
static PyObject *as_tuple(const int64_t *values, int32_t count)
{
	PyObject *tuple;

	if (!values && count)
		return Py_NewRef(Py_None);
	tuple = PyTuple_New(count);
	for (int32_t i = 0; tuple && i < count; i++) {
		PyObject *value = PyLong_FromLongLong(values[i]);

		if (!value || PyTuple_SetItem(tuple, i, value))
			Py_CLEAR(tuple);
	}
	return tuple;
}

/* Steals the reference to `kept`. */
static PyObject *describe(PyObject *kept, const struct dl_tensor *tensor, bool readonly)
{
	PyObject *shape = as_tuple(tensor->shape, tensor->ndim);
	PyObject *strides = shape ? as_tuple(tensor->strides, tensor->ndim) : NULL;
	unsigned long long address = (uintptr_t)tensor->data + tensor->byte_offset;

	if (!strides) {
		Py_XDECREF(shape);
		Py_DECREF(kept);
		return NULL;
	}
	return Py_BuildValue("(KiiNNiiiNN)", address, (int)tensor->device_type,
			     (int)tensor->device_id, shape, strides, (int)tensor->dtype_code,
			     (int)tensor->dtype_bits, (int)tensor->dtype_lanes,
			     PyBool_FromLong(readonly), kept);
}

const char core_take_dlpack_doc[] =
	"take_dlpack(capsule)\n"
	"--\n\n"
	"Consume a capsule: (address, device_type, device_id, shape, strides in elements or None,\n"
	"code, bits, lanes, readonly, owner). The memory lives as long as `owner`.";

PyObject *core_take_dlpack(PyObject *Py_UNUSED(module), PyObject *capsule)
{
	bool versioned = PyCapsule_IsValid(capsule, DL_VERSIONED_NAME);
	struct dl_managed_versioned *table;
	PyObject *kept;

	if (!versioned && !PyCapsule_IsValid(capsule, DL_NAME))
		return PyErr_Format(PyExc_TypeError,
				    "take_dlpack: %R is not an unconsumed DLPack capsule", capsule);
	CORE_BEGIN_ALONE(capsule);
	kept = take_over(capsule, versioned);
	CORE_END_ALONE();
	if (!kept)
		return NULL;
	if (!versioned) {
		struct dl_managed *managed = PyCapsule_GetPointer(kept, KEPT);

		return describe(kept, &managed->tensor, false);
	}
	/* In another major version, only the members before `flags` mean the same. */
	table = PyCapsule_GetPointer(kept, KEPT_VERSIONED);
	if (table->major != DL_MAJOR) {
		PyErr_Format(PyExc_BufferError,
			     "take_dlpack: the capsule is of DLPack %u.%u, but version %d was "
			     "requested",
			     (unsigned int)table->major, (unsigned int)table->minor, DL_MAJOR);
		Py_DECREF(kept);
		return NULL;
	}
	return describe(kept, &table->tensor, table->flags & DL_READ_ONLY);
}
