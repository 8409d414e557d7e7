/* SPDX-License-Identifier: MIT */
/*
 * gdrpy._core._mapping.Undo: clean-up steps, run in reverse order.
 *
 * Python may run a signal handler between any two bytecodes, so Python code can lose an object
 * before it has recorded how to release it. Here both happen in one call, and one call runs the
 * steps that are C functions.
 */
#include "module.h"

struct step {
	struct step *before;
	PyObject *function, *args, *check;
	PyObject *also; /* NULL unless `args` is the answer of a function that made something */
};

struct undo {
	PyObject_HEAD struct step *latest; /* NULL for none */
	PyObject *dropped;		   /* a list, or NULL */
	unsigned int generation;
};

/* Take the current exception, and clear it. */
static PyObject *take_error(void)
{
	PyObject *type, *error, *traceback;

	PyErr_Fetch(&type, &error, &traceback);
	PyErr_NormalizeException(&type, &error, &traceback);
	if (traceback)
		PyException_SetTraceback(error, traceback);
	Py_XDECREF(type);
	Py_XDECREF(traceback);
	return error;
}

/* Add the current exception to an earlier one as a note. */
static void note_error(PyObject *earlier)
{
	PyObject *error = take_error(), *type = PyType_GetName(Py_TYPE(error));
	PyObject *note = PyUnicode_FromFormat("cleaning up: %S: %S", type, error), *done = NULL;

	if (note)
		done = PyObject_CallMethodObjArgs(earlier, core_names.add_note, note, NULL);
	if (!done)
		PyErr_WriteUnraisable(error);
	Py_XDECREF(done);
	Py_XDECREF(note);
	Py_XDECREF(type);
	Py_DECREF(error);
}

static void free_step(struct step *step)
{
	if (!step)
		return;
	Py_XDECREF(step->function);
	Py_XDECREF(step->args);
	Py_XDECREF(step->check);
	Py_XDECREF(step->also);
	PyMem_Free(step);
}

/* A step that is not added yet. Takes `args`; NULL with an exception set, also if that is NULL. */
static struct step *make_step(PyObject *function, PyObject *args, PyObject *check, PyObject *also)
{
	struct step *step = args ? PyMem_Calloc(1, sizeof(*step)) : NULL;

	if (!step) {
		Py_XDECREF(args);
		if (!PyErr_Occurred())
			PyErr_NoMemory();
		return NULL;
	}
	*step = (struct step){NULL, Py_NewRef(function), args, Py_NewRef(check), Py_XNewRef(also)};
	return step;
}

/* Add and remove a step, for which no memory is needed. */
static void push(struct undo *self, struct step *step)
{
	CORE_BEGIN_ALONE(self);
	step->before = self->latest;
	self->latest = step;
	CORE_END_ALONE();
}

static struct step *pop(struct undo *self)
{
	struct step *step;

	CORE_BEGIN_ALONE(self);
	step = self->latest;
	if (step)
		self->latest = step->before;
	CORE_END_ALONE();
	return step;
}

/* Make a step and add it, if it can be made; -1 with an exception set. */
static int add(struct undo *self, PyObject *function, PyObject *args, PyObject *check)
{
	struct step *step = make_step(function, args, check, NULL);

	if (!step)
		return -1;
	push(self, step);
	return 0;
}

/* The objects made, and `also`, as arguments of the function that releases them. */
static PyObject *made_of(PyObject *answer, PyObject *also)
{
	PyObject *made, *all;

	made = PyTuple_Check(answer) ? PyTuple_GetSlice(answer, 1, PyTuple_Size(answer))
				     : PyTuple_Pack(1, answer);
	all = made ? PySequence_Concat(made, also) : NULL;
	Py_XDECREF(made);
	return all;
}

/* Run a step and check its result; false with an exception set. */
static bool run_step(const struct step *step)
{
	PyObject *args = step->also ? made_of(step->args, step->also) : Py_NewRef(step->args);
	PyObject *answer = args ? PyObject_CallObject(step->function, args) : NULL, *checked;

	Py_XDECREF(args);
	if (!answer || step->check == Py_None) {
		Py_XDECREF(answer);
		return answer != NULL;
	}
	checked = PyObject_CallFunctionObjArgs(step->check, answer, NULL);
	Py_DECREF(answer);
	Py_XDECREF(checked);
	return checked != NULL;
}

/* Run all steps. Takes `error` (or NULL), and returns it or else the first failure. */
static PyObject *run(struct undo *self, PyObject *error)
{
	struct step *step;

	while ((step = pop(self))) {
		bool done = run_step(step);

		if (!done && error)
			note_error(error);
		else if (!done)
			error = take_error();
		free_step(step);
	}
	return error;
}

/* Run all steps; -1 with the first failure set. */
static int run_and_raise(struct undo *self)
{
	PyObject *error = run(self, NULL);

	if (!error)
		return 0;
	PyErr_SetObject((PyObject *)Py_TYPE(error), error);
	Py_DECREF(error);
	return -1;
}

/* Move the steps to a new object. */
static struct undo *move(struct undo *self, PyObject *dropped)
{
	struct undo *moved = (struct undo *)PyType_GenericAlloc(Py_TYPE((PyObject *)self), 0);

	if (!moved)
		return NULL;
	moved->generation = core_fork_generation;
	moved->dropped = Py_XNewRef(dropped);
	CORE_BEGIN_ALONE(self);
	moved->latest = self->latest;
	self->latest = NULL;
	CORE_END_ALONE();
	return moved;
}

static PyObject *undo_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
	struct undo *self;

	if (!PyArg_ParseTuple(args, ":Undo"))
		return NULL;
	self = (struct undo *)PyType_GenericAlloc(type, 0);
	if (self)
		self->generation = core_fork_generation;
	return (PyObject *)self;
}

/* Whether the interpreter is ending: the process then releases everything, and CUDA may be gone. */
static bool is_finalizing(void)
{
	PyObject *ask = PySys_GetObject("is_finalizing");
	PyObject *answer = ask ? PyObject_CallNoArgs(ask) : NULL;
	bool found = answer != Py_False;

	PyErr_Clear();
	Py_XDECREF(answer);
	return found;
}

/* Move the steps to the `dropped` list, or run them; -1 with an exception set. */
static int drop(struct undo *self)
{
	PyObject *moved;
	int failed;

	if (!self->dropped)
		return run_and_raise(self);
	moved = (PyObject *)move(self, self->dropped);
	failed = moved ? PyList_Append(self->dropped, moved) : -1;
	Py_XDECREF(moved);
	return failed;
}

static void forget(struct undo *self)
{
	struct step *step;

	while ((step = pop(self)))
		free_step(step);
}

static int undo_clear(struct undo *self)
{
	forget(self);
	Py_CLEAR(self->dropped);
	return 0;
}

static void undo_finalize(PyObject *object)
{
	struct undo *self = (struct undo *)object;
	PyObject *type, *error, *traceback;

	PyErr_Fetch(&type, &error, &traceback);
	if (self->latest && self->generation == core_fork_generation && !is_finalizing() &&
	    drop(self))
		PyErr_WriteUnraisable(object);
	PyErr_Restore(type, error, traceback);
	undo_clear(self);
}

static int undo_traverse(struct undo *self, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE((PyObject *)self));
	for (const struct step *step = self->latest; step; step = step->before) {
		Py_VISIT(step->function);
		Py_VISIT(step->args);
		Py_VISIT(step->check);
		Py_VISIT(step->also);
	}
	Py_VISIT(self->dropped);
	return 0;
}

/* Add a step from the argument at `first` and those after it. */
static PyObject *add_call(struct undo *self, PyObject *args, Py_ssize_t first, PyObject *check)
{
	PyObject *function = check ? PyTuple_GetItem(args, first) : NULL;

	if (!function ||
	    add(self, function, PyTuple_GetSlice(args, first + 1, PyTuple_Size(args)), check))
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *undo_callback(struct undo *self, PyObject *args)
{
	return add_call(self, args, 0, Py_None);
}

static PyObject *undo_checked(struct undo *self, PyObject *args)
{
	return add_call(self, args, 1, PyTuple_GetItem(args, 0));
}

static PyObject *undo_keep(struct undo *self, PyObject *resource)
{
	PyObject *close = PyObject_GetAttr(resource, core_names.close);
	int error = close ? add(self, close, PyTuple_New(0), Py_None) : -1;

	Py_XDECREF(close);
	return error ? NULL : Py_NewRef(resource);
}

/*
 * Whether a function's result means failure: a CUDA result whose first item is not 0, or a null
 * pointer of the C core. -1 with an exception set.
 */
static int failed(PyObject *answer)
{
	PyObject *error;

	if (!PyTuple_Check(answer))
		return PyObject_Not(answer);
	error = PyTuple_GetItem(answer, 0);
	return error ? PyObject_IsTrue(error) : -1;
}

/*
 * Call a function, and add the step that undoes it after the call or before it. Nothing is
 * allocated between the call and the step's addition.
 */
static PyObject *call(struct undo *self, PyObject *args, bool makes)
{
	PyObject *function, *arguments, *by, *also, *check, *answer;
	struct step *step;
	int error;

	if (!PyArg_ParseTuple(args, makes ? "OO!OO!O:made" : "OO!OO!O:done", &function,
			      &PyTuple_Type, &arguments, &by, &PyTuple_Type, &also, &check))
		return NULL;
	step = make_step(by, Py_NewRef(also), check, makes ? also : NULL);
	if (!step)
		return NULL;
	if (!makes)
		push(self, step);
	answer = PyObject_CallObject(function, arguments);
	error = answer ? failed(answer) : -1;
	if (!makes) {
		if (error > 0) /* the step is the latest */
			free_step(pop(self));
	} else if (error) {
		free_step(step);
	} else {
		Py_DECREF(step->args);
		step->args = Py_NewRef(answer);
		push(self, step);
	}
	if (error < 0)
		Py_CLEAR(answer);
	return answer;
}

static PyObject *undo_made(struct undo *self, PyObject *args)
{
	return call(self, args, true);
}

static PyObject *undo_done(struct undo *self, PyObject *args)
{
	return call(self, args, false);
}

static PyObject *undo_pop_all(struct undo *self, PyObject *args)
{
	PyObject *dropped = NULL;

	if (!PyArg_ParseTuple(args, "|O!:pop_all", &PyList_Type, &dropped))
		return NULL;
	return (PyObject *)move(self, dropped);
}

static PyObject *undo_forget(struct undo *self, PyObject *Py_UNUSED(unused))
{
	forget(self);
	Py_RETURN_NONE;
}

static PyObject *undo_close(struct undo *self, PyObject *Py_UNUSED(unused))
{
	if (run_and_raise(self))
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *undo_enter(PyObject *self, PyObject *Py_UNUSED(unused))
{
	return Py_NewRef(self);
}

static PyObject *undo_exit(struct undo *self, PyObject *args)
{
	PyObject *error = PyTuple_GetItem(args, 1);

	if (!error)
		return NULL;
	if (error == Py_None)
		return undo_close(self, NULL);
	Py_XDECREF(run(self, Py_NewRef(error)));
	Py_RETURN_NONE;
}

static PyMethodDef undo_methods[] = {
	{"callback", (PyCFunction)undo_callback, METH_VARARGS,
	 "callback(function, /, *args)\n--\n\nAdd a step."},
	{"checked", (PyCFunction)undo_checked, METH_VARARGS,
	 "checked(check, function, /, *args)\n--\n\n"
	 "Add a step whose result is passed to check(), which raises if the step failed."},
	{"keep", (PyCFunction)undo_keep, METH_O,
	 "keep(resource, /)\n--\n\nAdd a step that closes a resource; returns the resource."},
	{"made", (PyCFunction)undo_made, METH_VARARGS,
	 "made(function, args, by, also, check, /)\n--\n\n"
	 "Call a function that makes objects, and return its result.\n\n"
	 "The result is CUDA's (error, made, ...), or a pointer, null on failure. Unless it\n"
	 "failed, a step calls by(made, ..., *also), and check() with the result."},
	{"done", (PyCFunction)undo_done, METH_VARARGS,
	 "done(function, args, by, also, check, /)\n--\n\n"
	 "Like made(), for a CUDA function that makes a change which by(*also) undoes.\n"
	 "The step is added before the call, which an exception may end after the change."},
	{"pop_all", (PyCFunction)undo_pop_all, METH_VARARGS,
	 "pop_all(dropped=None, /)\n--\n\n"
	 "Move the steps to a new Undo. If that is dropped with steps left, they are put on the\n"
	 "list `dropped` in another one, or run if there is no list."},
	{"forget", (PyCFunction)undo_forget, METH_NOARGS,
	 "forget()\n--\n\nDrop the steps, because their objects have another owner now."},
	{"close", (PyCFunction)undo_close, METH_NOARGS, "close()\n--\n\nRun the steps."},
	{"__enter__", undo_enter, METH_NOARGS, NULL},
	{"__exit__", (PyCFunction)undo_exit, METH_VARARGS, NULL},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot undo_slots[] = {
	{Py_tp_doc,
	 "Undo()\n--\n\n"
	 "Clean-up steps, run in reverse order: contextlib.ExitStack with other rules.\n\n"
	 "Every step is run. The first failure is raised, with the later ones as notes, so that a\n"
	 "failing step does not hide the cause. Steps that are left when nothing refers to it\n"
	 "are run then, except those of a forked child's parent."},
	{Py_tp_new, undo_new},
	{Py_tp_finalize, undo_finalize},
	{Py_tp_traverse, undo_traverse},
	{Py_tp_clear, undo_clear},
	{Py_tp_methods, undo_methods},
	{0, NULL},
};

CORE_TYPE(undo, "Undo", Py_TPFLAGS_HAVE_GC);
