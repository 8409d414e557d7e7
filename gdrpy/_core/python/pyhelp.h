/* SPDX-License-Identifier: MIT */
/* What the extension's types share: argument parsing, and the errors that they raise. */
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

/* Classes of gdrpy.errors, imported once. */
extern PyObject *core_error_closed;
extern PyObject *core_error_forked;
extern PyObject *core_error_missing_view;
extern PyObject *core_error_readonly;
extern PyObject *core_error_revoked;
extern PyObject *core_error_timeout;

/* Counts the forks behind this process: an object made before the last one is its parent's. */
extern unsigned int core_fork_generation;

/*
 * Sort a vectorcall's arguments into out[], one slot a name, NULL where absent. names ends with
 * NULL; the first `required` must be there. Returns false with an exception set.
 */
bool core_parse(const char *method, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
		const char *const *names, int required, PyObject **out);

/*
 * The buffer that is the argument `name`, with a format, and a shape at least; to be released.
 * Python objects are no bytes: an array of them is refused. False with an exception that says whose
 * argument it was.
 */
bool core_get_view(const char *method, const char *name, PyObject *object, int flags,
		   Py_buffer *view);

/*
 * The bytes of a contiguous buffer, to be read or, if so asked for, written; to be released. What
 * is a bytes object, the most frequent, is not asked for a buffer: that takes 10 ns.
 */
struct core_bytes {
	char *data;
	Py_ssize_t nbytes;
	Py_buffer view; /* its obj is NULL where there is none */
};

bool core_get_bytes(const char *method, const char *name, PyObject *object, bool writable,
		    struct core_bytes *bytes);

static inline void core_release_bytes(struct core_bytes *bytes)
{
	if (bytes->view.obj)
		PyBuffer_Release(&bytes->view);
}

/* A non-negative size or offset; `absent` where the object is NULL. -1 with an exception set. */
Py_ssize_t core_as_size(const char *method, const char *name, PyObject *object, Py_ssize_t absent);

/* An unsigned value that fits a word of `width` bytes; false with an exception set. */
bool core_as_word(const char *method, PyObject *object, Py_ssize_t width, uint64_t *value);

/* Seconds, None or absent, into ns, INT64_MAX for no limit; false with an exception set. */
bool core_as_timeout(const char *method, PyObject *object, int64_t *timeout);

/* Make the name of an attribute, once; false with an exception set. */
static inline bool core_name(PyObject **name, const char *text)
{
	*name = PyUnicode_InternFromString(text);
	return *name != NULL;
}

/* The module, which asks for no GIL where Python can do without. */
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
 * One thread at a time is between these, but for what a thread does that waits or lets go of the
 * GIL, as PyEval_SaveThread() does: where there is no GIL, the object's own lock does as the GIL.
 */
#ifdef Py_GIL_DISABLED
#define CORE_BEGIN_ALONE(object) Py_BEGIN_CRITICAL_SECTION(object)
#define CORE_END_ALONE() Py_END_CRITICAL_SECTION()
#else
#define CORE_BEGIN_ALONE(object) {
#define CORE_END_ALONE() }
#endif

/* Make NAME_alone() of a method that takes fast-call arguments, or of another one or a getter. */
#define CORE_ALONE_FASTCALL(function, type)                                                        \
	static PyObject *function##_alone(struct type *self, PyObject *const *args,                \
					  Py_ssize_t nargs, PyObject *kwnames)                     \
	{                                                                                          \
		PyObject *result;                                                                  \
                                                                                                   \
		CORE_BEGIN_ALONE(self);                                                            \
		result = function(self, args, nargs, kwnames);                                     \
		CORE_END_ALONE();                                                                  \
		return result;                                                                     \
	}
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
