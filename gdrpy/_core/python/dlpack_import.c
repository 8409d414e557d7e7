/* SPDX-License-Identifier: MIT */
/*
 * Takes over a capsule's table and describes it to Python. Our own capsule around the table keeps
 * the memory; its destructor calls the table's deleter.
 */
#include "module.h"

#include "dlpack_abi.h"

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
