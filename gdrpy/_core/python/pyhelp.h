/* SPDX-License-Identifier: MIT */
/* Shared by the extension's types: argument parsing, and the errors that they raise. */
#ifndef GDRPY_PYHELP_H
#define GDRPY_PYHELP_H

#define PY_SSIZE_T_CLEAN
#include <pyconfig.h>
/* Free-threaded Pythons have no limited API. */
#if !defined(Py_LIMITED_API) && !defined(Py_GIL_DISABLED)
#define Py_LIMITED_API 0x030b0000
#endif
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

/* Classes of gdrpy.errors and threading.RLock, imported once. */
extern PyObject *core_error_closed, *core_error_forked, *core_error_missing_view,
	*core_error_readonly, *core_error_revoked, *core_error_timeout, *core_make_lock;

/* Counts the forks up to this process: an object made before the last one is its parent's. */
extern unsigned int core_fork_generation;

/* PyErr_Format(), for functions that then return false. */
#define core_raise(...) (PyErr_Format(__VA_ARGS__), false)

/* Whether an object's __init__() is its first one; false with an exception set. */
static inline bool core_init_once(const char *type, bool initialized)
{
	return !initialized ||
	       core_raise(PyExc_TypeError, "%s: an object is initialized once", type);
}

/*
 * Sort a vectorcall's arguments into out[], one slot a name, NULL if absent. names ends with NULL;
 * the first `required` must be present. Returns false with an exception set.
 */
bool core_parse(const char *method, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
		const char *const *names, int required, PyObject **out);

/*
 * Get the buffer of the argument `name`, with its shape; the caller releases it. Arrays of Python
 * objects are refused. False with an exception that names the argument.
 */
bool core_get_view(const char *method, const char *name, PyObject *object, int flags,
		   Py_buffer *view);

/*
 * Get the bytes of a contiguous buffer, for reading or, if `writable`, writing; the caller releases
 * them. For bytes objects, the most frequent, no buffer is requested: that takes 10 ns.
 */
struct core_bytes {
	char *data;
	Py_ssize_t nbytes;
	Py_buffer view; /* obj is NULL if there is none */
};

bool core_get_bytes(const char *method, const char *name, PyObject *object, bool writable,
		    struct core_bytes *bytes);

static inline void core_release_bytes(struct core_bytes *bytes)
{
	if (bytes->view.obj)
		PyBuffer_Release(&bytes->view);
}

/* A non-negative size or offset; `absent` if the object is NULL. -1 with an exception set. */
Py_ssize_t core_as_size(const char *method, const char *name, PyObject *object, Py_ssize_t absent);

/* An unsigned value that fits a word of `width` bytes; false with an exception set. */
bool core_as_word(const char *method, PyObject *object, Py_ssize_t width, uint64_t *value);

/* Convert seconds to ns; None or absent is INT64_MAX, no limit. False with an exception set. */
bool core_as_timeout(const char *method, PyObject *object, int64_t *timeout);

/* Names of attributes, interned before the first object is made. */
#define CORE_NAMES(X)                                                                              \
	X(acquire, "acquire")                                                                      \
	X(add_note, "add_note")                                                                    \
	X(again, "_again")                                                                         \
	X(anew, "_anew")                                                                           \
	X(close, "close")                                                                          \
	X(close_once, "_close_once")                                                               \
	X(closed, "_closed")                                                                       \
	X(engine, "engine")                                                                        \
	X(flush, "flush")                                                                          \
	X(generation, "_generation")                                                               \
	X(leases, "leases")                                                                        \
	X(life, "life")                                                                            \
	X(mutex, "_mutex")                                                                         \
	X(name, "__name__")                                                                        \
	X(release, "release")                                                                      \
	X(release_it, "_release")                                                                  \
	X(returned, "returned")

extern struct core_names {
#define CORE_NAME(name, text) PyObject *name;
	CORE_NAMES(CORE_NAME)
#undef CORE_NAME
} core_names;

/* The result of a copy: None, or the number of bytes read; NULL if it failed. */
static inline PyObject *core_copied(bool done, bool to_write, Py_ssize_t nbytes)
{
	if (!done)
		return NULL;
	return to_write ? Py_NewRef(Py_None) : PyLong_FromSsize_t(nbytes);
}

/* The end of a type's dealloc. */
static inline void core_free_object(void *self)
{
	PyTypeObject *type = Py_TYPE((PyObject *)self);
	freefunc free_object = (freefunc)PyType_GetSlot(type, Py_tp_free);

	free_object(self);
	Py_DECREF(type);
}

/* Create the module, which does not need the GIL of a free-threaded Python. */
static inline PyObject *core_create_module(struct PyModuleDef *definition)
{
	PyObject *module = PyModule_Create(definition);

#ifdef Py_GIL_DISABLED
	if (module && PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED))
		Py_CLEAR(module);
#endif
	return module;
}

/*
 * Only one thread at a time runs between these, except while that thread waits or releases the GIL,
 * as PyEval_SaveThread() does. Without a GIL, the object's own lock acts like the GIL. To lock a
 * second object alone may release the first one's lock: lock both at once.
 */
#ifdef Py_GIL_DISABLED
#define CORE_BEGIN_ALONE(object) Py_BEGIN_CRITICAL_SECTION(object)
#define CORE_END_ALONE() Py_END_CRITICAL_SECTION()
#define CORE_BEGIN_BOTH_ALONE(one, other) Py_BEGIN_CRITICAL_SECTION2(one, other)
#define CORE_END_BOTH_ALONE() Py_END_CRITICAL_SECTION2()
#else
#define CORE_BEGIN_ALONE(object) {
#define CORE_END_ALONE() }
#define CORE_BEGIN_BOTH_ALONE(one, other) {
#define CORE_END_BOTH_ALONE() }
#endif

/* The arguments of a vectorcall: as parameters, and passed on. */
#define CORE_PARAMETERS PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames
#define CORE_ARGUMENTS args, nargs, kwnames

/* Define a method, which returns function(self, ..., CORE_ARGUMENTS): for a table of another file,
 * or of this one. */
#define CORE_METHOD(name, type, function, ...)                                                     \
	PyObject *name(struct type *self, CORE_PARAMETERS)                                         \
	{                                                                                          \
		return function(self, ##__VA_ARGS__, CORE_ARGUMENTS);                              \
	}
#define CORE_METHOD_ALONE(name, type, function, ...)                                               \
	static PyObject *name(struct type *self, CORE_PARAMETERS)                                  \
	{                                                                                          \
		PyObject *result;                                                                  \
                                                                                                   \
		CORE_BEGIN_ALONE(self);                                                            \
		result = function(self, ##__VA_ARGS__, CORE_ARGUMENTS);                            \
		CORE_END_ALONE();                                                                  \
		return result;                                                                     \
	}

/* Define NAME_alone() for a method without keywords, or for a getter. */
#define CORE_ALONE(function, type)                                                                 \
	static PyObject *function##_alone(struct type *self, void *argument)                       \
	{                                                                                          \
		PyObject *result;                                                                  \
                                                                                                   \
		CORE_BEGIN_ALONE(self);                                                            \
		result = function(self, argument);                                                 \
		CORE_END_ALONE();                                                                  \
		return result;                                                                     \
	}

/* Functions that take fast-call arguments, in a method table. */
#define CORE_FASTCALL(function)                                                                    \
	((PyCFunction)(void (*)(void))(function)), METH_FASTCALL | METH_KEYWORDS

#endif
