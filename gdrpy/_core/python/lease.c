/* SPDX-License-Identifier: MIT */
/*
 * gdrpy._core._mapping.Lease: a broker's grant while it is in use.
 *
 * Its connection's `leases` lists it under a unique number as (region, writable, gpu); at its end
 * it moves to `returned`. Python code for that could be interrupted half-way, silently in a
 * finalizer.
 */
#include "module.h"

#include <structmember.h>

struct lease {
	PyObject_HEAD PyObject *connection;
	PyObject *key;	  /* NULL if it was not made, or was returned */
	PyObject *region; /* its number */
	PyObject *life;
};

static PyObject *lease_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
	static unsigned long long last;
	PyObject *connection, *region, *writable, *gpu, *leases, *entry;
	struct lease *self;

	if (!PyArg_ParseTuple(args, "OOO!O!:Lease", &connection, &region, &PyBool_Type, &writable,
			      &PyBool_Type, &gpu))
		return NULL;
	self = (struct lease *)PyType_GenericAlloc(type, 0);
	if (!self)
		return NULL;
	self->connection = Py_NewRef(connection);
	self->region = Py_NewRef(region);
	self->life = PyObject_GetAttr(connection, core_names.life);
	leases = PyObject_GetAttr(connection, core_names.leases);
	self->key = PyLong_FromUnsignedLongLong(__atomic_add_fetch(&last, 1, __ATOMIC_RELAXED));
	entry = PyTuple_Pack(3, region, writable, gpu);
	if (!self->life || !leases || !self->key || !entry ||
	    PyDict_SetItem(leases, self->key, entry)) {
		Py_CLEAR(self->key);
		Py_CLEAR(self);
	}
	Py_XDECREF(entry);
	Py_XDECREF(leases);
	return (PyObject *)self;
}

/* Move the lease to `returned`; -1 with an exception set. */
static int move(struct lease *self, PyObject *leases, PyObject *returned)
{
	int held = PyDict_Contains(leases, self->key);

	if (held <= 0)
		return held;
	if (PyDict_SetItem(returned, self->key, self->region))
		return -1;
	return PyDict_DelItem(leases, self->key);
}

/* Return the lease, once; -1 with an exception set. */
static int give_back(struct lease *self)
{
	PyObject *leases, *returned, *told;
	int error;

	if (!self->key)
		return 0;
	leases = PyObject_GetAttr(self->connection, core_names.leases);
	returned = PyObject_GetAttr(self->connection, core_names.returned);
	error = leases && returned ? move(self, leases, returned) : -1;
	Py_XDECREF(leases);
	Py_XDECREF(returned);
	if (error)
		return -1;
	Py_CLEAR(self->key);
	told = PyObject_CallMethodObjArgs(self->connection, core_names.flush, NULL);
	Py_XDECREF(told);
	return told ? 0 : -1;
}

static PyObject *lease_close(struct lease *self, PyObject *Py_UNUSED(unused))
{
	if (give_back(self))
		return NULL;
	Py_RETURN_NONE;
}

static void lease_dealloc(struct lease *self)
{
	PyObject *error, *value, *traceback;

	PyErr_Fetch(&error, &value, &traceback);
	if (give_back(self))
		PyErr_WriteUnraisable(NULL);
	PyErr_Restore(error, value, traceback);
	Py_XDECREF(self->key);
	Py_XDECREF(self->region);
	Py_XDECREF(self->life);
	Py_XDECREF(self->connection);
	core_free_object(self);
}

/* The lease's entry in the connection: (region, writable, gpu), or None. */
static PyObject *lease_entry(struct lease *self, void *Py_UNUSED(closure))
{
	PyObject *leases, *entry = NULL;

	if (!self->key)
		Py_RETURN_NONE;
	leases = PyObject_GetAttr(self->connection, core_names.leases);
	if (!leases)
		return NULL;
	entry = PyDict_GetItemWithError(leases, self->key);
	entry = entry || PyErr_Occurred() ? Py_XNewRef(entry) : Py_NewRef(Py_None);
	Py_DECREF(leases);
	return entry;
}

static PyMethodDef lease_methods[] = {
	{"close", (PyCFunction)lease_close, METH_NOARGS,
	 "close()\n--\n\nReturn the grant; never waits. May be called again."},
	{NULL, NULL, 0, NULL},
};

static PyMemberDef lease_members[] = {
	{"_connection", T_OBJECT_EX, offsetof(struct lease, connection), READONLY, NULL},
	{"region", T_OBJECT_EX, offsetof(struct lease, region), READONLY, NULL},
	{"life", T_OBJECT_EX, offsetof(struct lease, life), READONLY, NULL},
	{NULL, 0, 0, 0, NULL},
};

static PyGetSetDef lease_getset[] = {
	{"_entry", (getter)lease_entry, NULL, NULL, NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot lease_slots[] = {
	{Py_tp_doc,
	 "Lease(connection, region, writable, gpu)\n--\n\nA grant, as its connection lists it."},
	{Py_tp_new, lease_new},
	{Py_tp_dealloc, lease_dealloc},
	{Py_tp_methods, lease_methods},
	{Py_tp_members, lease_members},
	{Py_tp_getset, lease_getset},
	{0, NULL},
};

CORE_TYPE(lease, "Lease", Py_TPFLAGS_BASETYPE);
