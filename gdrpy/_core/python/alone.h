/* SPDX-License-Identifier: MIT */
/* Calls that no signal can interrupt: with a lock held, and of coroutines that do not wait. */
#ifndef GDRPY_ALONE_H
#define GDRPY_ALONE_H

#include "pyhelp.h"

/* Called before the module's functions; false with an exception set. */
bool core_alone_names(void);

/* Call a function with a lock held. */
PyObject *core_call_alone(PyObject *lock, PyObject *function);

/* Functions of the module. */
PyObject *core_alone(PyObject *module, PyObject *args);
PyObject *core_try_alone(PyObject *module, PyObject *args);
PyObject *core_run(PyObject *module, PyObject *args, PyObject *kwargs);

#endif
