/* SPDX-License-Identifier: MIT */
/*
 * gdrpy._core._mapping.Resource: closes once, and belongs to its process.
 *
 * The state is kept in attributes, so that Python classes may also have a base with its own layout.
 * It is in C because every call checks it, and because a lock acquired by Python code could stay
 * acquired.
 */
#include "module.h"

/* Set an attribute to a new reference; -1 with an exception set. */
static int set(PyObject *self, PyObject *name, PyObject *value)
{
	int error = value ? PyObject_SetAttr(self, name, value) : -1;

	Py_XDECREF(value);
	return error;
}

static int resource_init(PyObject *self, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
	PyObject *mutex = NULL;

	if (!PyArg_UnpackTuple(args, "Resource", 0, 1, &mutex))
		return -1;
	if (set(self, core_names.mutex,
		mutex ? Py_NewRef(mutex) : PyObject_CallNoArgs(core_make_lock)) ||
	    set(self, core_names.generation, PyLong_FromUnsignedLong(core_fork_generation)))
		return -1;
	return set(self, core_names.closed, Py_NewRef(Py_False));
}

/* 1 if it is closed, or was never made; -1 with an exception set. */
static int is_closed(PyObject *self)
{
	PyObject *closed = PyObject_GetAttr(self, core_names.closed);
	int answer = closed ? PyObject_IsTrue(closed) : -1;

	Py_XDECREF(closed);
	return answer;
}

/* 1 in a forked child of the process that made it; -1 with an exception set. */
static int is_forked(PyObject *self)
{
	PyObject *generation = PyObject_GetAttr(self, core_names.generation);
	unsigned long made = generation ? PyLong_AsUnsignedLong(generation) : (unsigned long)-1;

	Py_XDECREF(generation);
	return PyErr_Occurred() ? -1 : made != core_fork_generation;
}

static PyObject *resource_forked(PyObject *self, PyObject *Py_UNUSED(unused))
{
	int forked = is_forked(self);

	return forked < 0 ? NULL : PyBool_FromLong(forked);
}

/* Refuse a call, with the remedy of the class. */
static void refuse(PyObject *self, PyObject *call, bool forked)
{
	PyObject *name = PyObject_GetAttr((PyObject *)Py_TYPE(self), core_names.name);
	PyObject *attribute = forked ? core_names.again : core_names.anew;
	PyObject *remedy = name ? PyObject_GetAttr(self, attribute) : NULL;

	if (remedy && forked)
		PyErr_Format(core_error_forked,
			     "%S: this %S belongs to the parent process; in a forked child %S",
			     call, name, remedy);
	else if (remedy)
		PyErr_Format(core_error_closed, "%S: the %S is closed%s%S", call, name,
			     PyUnicode_GetLength(remedy) ? ": " : "", remedy);
	Py_XDECREF(remedy);
	Py_XDECREF(name);
}

static PyObject *resource_check(PyObject *self, PyObject *call)
{
	int forked = is_forked(self), closed = forked ? 0 : is_closed(self);

	if (!forked && !closed)
		Py_RETURN_NONE;
	if (forked > 0 || closed > 0)
		refuse(self, call, forked > 0);
	return NULL;
}

static PyObject *resource_close_once(PyObject *self, PyObject *Py_UNUSED(unused))
{
	int closed = is_closed(self);
	PyObject *released;

	if (closed)
		return closed < 0 ? NULL : Py_NewRef(Py_None);
	released = PyObject_CallMethodObjArgs(self, core_names.release_it, NULL);
	if (released && PyObject_SetAttr(self, core_names.closed, Py_True))
		Py_CLEAR(released);
	return released;
}

static PyObject *resource_close(PyObject *self, PyObject *Py_UNUSED(unused))
{
	int closed = is_closed(self), forked = closed ? 0 : is_forked(self);
	PyObject *mutex, *close_once, *result = NULL;

	if (closed < 0 || forked < 0)
		return NULL;
	if (forked && PyObject_SetAttr(self, core_names.closed, Py_True))
		return NULL;
	if (closed || forked)
		Py_RETURN_NONE;
	mutex = PyObject_GetAttr(self, core_names.mutex);
	close_once = mutex ? PyObject_GetAttr(self, core_names.close_once) : NULL;
	if (close_once)
		result = core_call_alone(mutex, close_once);
	Py_XDECREF(close_once);
	Py_XDECREF(mutex);
	return result;
}

static PyObject *resource_get_closed(PyObject *self, void *Py_UNUSED(closure))
{
	return PyObject_GetAttr(self, core_names.closed);
}

static PyObject *resource_get_lock(PyObject *self, void *Py_UNUSED(closure))
{
	int forked = is_forked(self);

	if (forked < 0)
		return NULL;
	return forked ? PyObject_CallNoArgs(core_make_lock)
		      : PyObject_GetAttr(self, core_names.mutex);
}

static PyMethodDef resource_methods[] = {
	{"_check", resource_check, METH_O,
	 "_check(call, /)\n--\n\nRaise if the object is closed, or belongs to a parent process."},
	{"_forked", resource_forked, METH_NOARGS,
	 "_forked()\n--\n\nWhether this is a forked child of the process that made it."},
	{"_close_once", resource_close_once, METH_NOARGS,
	 "_close_once()\n--\n\nClose it, with the lock held."},
	{"close", resource_close, METH_NOARGS,
	 "close()\n--\n\n"
	 "Release everything. May be called again, and does nothing in a forked child."},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef resource_getset[] = {
	{"closed", resource_get_closed, NULL, "Whether :meth:`close` has been called.", NULL},
	{"_lock", resource_get_lock, NULL,
	 "Held while it closes. In a forked child a new one: the thread that held the parent's "
	 "may\n"
	 "not exist.",
	 NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot resource_slots[] = {
	{Py_tp_doc, "Closes once, with its class's _release(), and belongs to its process."},
	{Py_tp_init, resource_init},
	{Py_tp_methods, resource_methods},
	{Py_tp_getset, resource_getset},
	{0, NULL},
};

PyType_Spec core_resource_spec = {
	.name = "gdrpy._core._mapping.Resource",
	.basicsize = sizeof(PyObject),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
	.slots = resource_slots,
};
