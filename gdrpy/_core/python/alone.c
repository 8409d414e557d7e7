/* SPDX-License-Identifier: MIT */
/*
 * Acquire and release a lock in one call. Between the bytecodes of a `with` block, Python may raise
 * an exception of a signal handler or of another thread, and the lock would stay acquired.
 */
#include "module.h"

/* args[0](*args[1:], **kwargs). */
static PyObject *call(PyObject *args, Py_ssize_t first, PyObject *kwargs)
{
	PyObject *function = PyTuple_GetItem(args, first), *rest, *result;

	if (!function)
		return NULL;
	rest = PyTuple_GetSlice(args, first + 1, PyTuple_Size(args));
	if (!rest)
		return NULL;
	result = PyObject_Call(function, rest, kwargs);
	Py_DECREF(rest);
	return result;
}

static bool take(PyObject *lock)
{
	PyObject *taken = PyObject_CallMethodObjArgs(lock, core_names.acquire, NULL);

	Py_XDECREF(taken);
	return taken != NULL;
}

/* Release the lock, whether the call has failed or not, and return its result. */
static PyObject *let_go(PyObject *lock, PyObject *result)
{
	PyObject *error, *value, *traceback, *released;

	PyErr_Fetch(&error, &value, &traceback);
	released = PyObject_CallMethodObjArgs(lock, core_names.release, NULL);
	if (!released)
		PyErr_WriteUnraisable(lock);
	Py_XDECREF(released);
	PyErr_Restore(error, value, traceback);
	return result;
}

PyObject *core_call_alone(PyObject *lock, PyObject *function)
{
	return take(lock) ? let_go(lock, PyObject_CallNoArgs(function)) : NULL;
}

PyObject *core_alone(PyObject *Py_UNUSED(module), PyObject *args)
{
	PyObject *lock = PyTuple_GetItem(args, 0);

	return lock && take(lock) ? let_go(lock, call(args, 1, NULL)) : NULL;
}

PyObject *core_try_alone(PyObject *Py_UNUSED(module), PyObject *args)
{
	PyObject *lock = PyTuple_GetItem(args, 0);
	PyObject *taken =
		lock ? PyObject_CallMethodObjArgs(lock, core_names.acquire, Py_False, NULL) : NULL;

	if (!taken || taken == Py_False)
		return taken;
	Py_DECREF(taken);
	return let_go(lock, call(args, 1, NULL));
}

PyObject *core_run(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
	PyObject *steps = call(args, 0, kwargs), *result = NULL;

	if (!steps)
		return NULL;
	if (PyIter_Send(steps, Py_None, &result) == PYGEN_NEXT) {
		Py_CLEAR(result);
		PyErr_SetString(PyExc_RuntimeError, "a blocking call was suspended");
	}
	Py_DECREF(steps);
	return result;
}
