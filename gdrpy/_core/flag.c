/* SPDX-License-Identifier: MIT */
/* gdrpy._core._mapping.Flag: one aligned word of a mapping, for signalling. */
#include "mapping.h"
#include "spin.h"

#include <sched.h>
#include <structmember.h>

/*
 * Looks between two that are told the time. In cached memory they come so fast that reading the
 * clock each time would delay the answer; in GPU memory each is a round trip of 1 us over the bus.
 */
#define LOOKS_CACHED 64
#define LOOKS_UNCACHED 1

/* Then look for signals, and let others have the CPU. */
#define ROUND_NS 1000000

struct flag {
	PyObject_HEAD struct mapping *mapping;
	Py_ssize_t offset;
	Py_ssize_t width;
};

/* The waits of cuStreamWaitValue, with its numbers. */
enum condition {
	AT_LEAST = 0,
	EQUAL = 1,
	ANY_BIT = 2,
	NOR = 3
};

static const char *const condition_names[] = {">=", "==", "&", "nor", NULL};

static bool holds(enum condition condition, Py_ssize_t width, uint64_t now, uint64_t value)
{
	switch (condition) {
	case AT_LEAST: /* cyclic, so that a counter may wrap */
		return width == 4 ? (int32_t)((uint32_t)now - (uint32_t)value) >= 0
				  : (int64_t)(now - value) >= 0;
	case EQUAL:
		return now == value;
	case ANY_BIT:
		return (now & value) != 0;
	default:
		return ~(now | value) << (64 - 8 * width) != 0;
	}
}

static bool flag_usable(struct flag *self, const char *method, bool to_store)
{
	if (!self->mapping) {
		PyErr_Format(PyExc_TypeError, "%s: the Flag was never initialized", method);
		return false;
	}
	return to_store ? gdr_mapping_writable(self->mapping, method)
			: gdr_mapping_usable(self->mapping, method);
}

static char *flag_word(struct flag *self)
{
	return self->mapping->address + self->offset;
}

static PyObject *flag_set(struct flag *self, PyObject *object)
{
	uint64_t value;

	if (!flag_usable(self, "Flag.set", true) ||
	    !gdr_as_word("Flag.set", object, self->width, &value))
		return NULL;

	/* What was written before the flag must be there when the flag is seen. */
	gdr_store_fence();
	gdr_word_store(flag_word(self), self->width, value);
	gdr_store_fence();
	Py_RETURN_NONE;
}

static PyObject *flag_get(struct flag *self, PyObject *Py_UNUSED(unused))
{
	if (!flag_usable(self, "Flag.get", false))
		return NULL;
	return PyLong_FromUnsignedLongLong(
		gdr_mapping_load(self->mapping, self->offset, self->width));
}

static bool parse_condition(PyObject *object, enum condition *condition)
{
	int i;

	*condition = AT_LEAST;
	if (!object)
		return true;
	for (i = 0; PyUnicode_Check(object) && condition_names[i]; i++) {
		if (PyUnicode_CompareWithASCIIString(object, condition_names[i]) == 0) {
			*condition = i;
			return true;
		}
	}
	PyErr_Format(PyExc_ValueError, "Flag.wait: op must be '>=', '==', '&' or 'nor', and is %R",
		     object);
	return false;
}

struct wait {
	enum condition condition;
	uint64_t value; /* what is waited for */
	uint64_t found; /* at the last look */
	int64_t timeout;
	int64_t deadline; /* in CLOCK_MONOTONIC ns */
	bool late;
};

/* Look until the condition holds, but no more often than between two readings of the clock. */
static bool look(struct flag *self, struct wait *wait)
{
	const char *word = flag_word(self);
	int looks = self->mapping->type == GDR_MAPPING_CACHED ? LOOKS_CACHED : LOOKS_UNCACHED;

	do {
		wait->found = gdr_word_load(word, self->width);
		if (holds(wait->condition, self->width, wait->found, wait->value))
			return true;
		gdr_cpu_relax();
	} while (--looks);
	return false;
}

/* Look for a while without the GIL. */
static bool look_on(struct flag *self, struct wait *wait)
{
	int64_t now = gdr_now_ns();
	int64_t end = now + ROUND_NS;
	bool held;

	do {
		held = look(self, wait);
		now = gdr_now_ns();
		wait->late = now >= wait->deadline;
	} while (!held && !wait->late && now < end);
	if (!held && !wait->late)
		sched_yield();
	return held;
}

/* Whether the condition came to hold; if not, it is late or an exception is set. */
static bool wait_on(struct flag *self, struct wait *wait)
{
	bool held;

	wait->deadline = gdr_deadline(wait->timeout);
	self->mapping->users++;
	do {
		Py_BEGIN_ALLOW_THREADS held = look_on(self, wait);
		Py_END_ALLOW_THREADS
	} while (!held && !wait->late && !PyErr_CheckSignals() &&
		 flag_usable(self, "Flag.wait", false));
	self->mapping->users--;
	return held;
}

static PyObject *flag_wait(struct flag *self, PyObject *const *args, Py_ssize_t nargs,
			   PyObject *kwnames)
{
	static const char *const names[] = {"value", "timeout", "op", NULL};
	struct wait wait = {0};
	PyObject *arg[3];

	if (!gdr_parse("Flag.wait", args, nargs, kwnames, names, 1, arg) ||
	    !flag_usable(self, "Flag.wait", false) ||
	    !gdr_as_word("Flag.wait", arg[0], self->width, &wait.value) ||
	    !gdr_as_timeout("Flag.wait", arg[1], &wait.timeout) ||
	    !parse_condition(arg[2], &wait.condition) || !flag_usable(self, "Flag.wait", false))
		return NULL;

	/* What comes within a microsecond or two is seen without giving up the GIL. */
	if (look(self, &wait) || wait_on(self, &wait)) {
		gdr_load_fence(); /* what the flag announced is read after it */
		return PyLong_FromUnsignedLongLong(wait.found);
	}
	if (!PyErr_Occurred())
		PyErr_Format(gdr_error_timeout,
			     "Flag.wait: the word at offset %zd is %llu, and not %s %llu in time",
			     self->offset, (unsigned long long)wait.found,
			     condition_names[wait.condition], (unsigned long long)wait.value);
	return NULL;
}

static int flag_init(struct flag *self, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"mapping", "offset", "width", NULL};
	PyObject *mapping, *offset_object = NULL, *width_object = NULL;
	Py_ssize_t offset, width;

	if (self->mapping) {
		PyErr_SetString(PyExc_TypeError, "a Flag is made once");
		return -1;
	}
	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|OO:Flag", names, gdr_mapping_type_object,
					 &mapping, &offset_object, &width_object))
		return -1;
	offset = gdr_as_size("Flag", "offset", offset_object, 0);
	if (offset < 0)
		return -1;
	width = gdr_as_size("Flag", "width", width_object, 4);
	if (width < 0)
		return -1;
	if (!gdr_mapping_usable((struct mapping *)mapping, "Flag") ||
	    !gdr_mapping_word((struct mapping *)mapping, "Flag", offset, width))
		return -1;

	self->mapping = (struct mapping *)Py_NewRef(mapping);
	self->offset = offset;
	self->width = width;
	return 0;
}

static int flag_traverse(struct flag *self, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE((PyObject *)self));
	Py_VISIT(self->mapping);
	return 0;
}

static int flag_clear(struct flag *self)
{
	Py_CLEAR(self->mapping);
	return 0;
}

static void flag_dealloc(struct flag *self)
{
	PyTypeObject *type = Py_TYPE((PyObject *)self);
	freefunc free_object = (freefunc)PyType_GetSlot(type, Py_tp_free);

	PyObject_GC_UnTrack(self);
	flag_clear(self);
	free_object(self);
	Py_DECREF(type);
}

static PyMethodDef flag_methods[] = {
	{"set", (PyCFunction)flag_set, METH_O,
	 "set(value)\n--\n\n"
	 "Store the word. Everything written to the mapping before is visible before it is,\n"
	 "and it leaves the CPU before set() returns. Raises ValueError if it does not fit."},
	{"get", (PyCFunction)flag_get, METH_NOARGS, "get()\n--\n\nLoad the word."},
	{"wait", GDR_FASTCALL(flag_wait),
	 "wait(value, timeout=None, op='>=')\n--\n\n"
	 "Wait until the word meets the condition, and return it.\n\n"
	 "op is that of cuStreamWaitValue: '>=' (cyclic: the signed difference is not negative),\n"
	 "'==', '&' (a common bit) or 'nor' (a bit that is set in neither). timeout is in "
	 "seconds;\n"
	 "None waits for ever. Other Python threads run meanwhile, and signals are answered.\n\n"
	 "Raises Timeout."},
	{NULL, NULL, 0, NULL},
};

static PyMemberDef flag_members[] = {
	{"offset", T_PYSSIZET, offsetof(struct flag, offset), READONLY,
	 "Byte offset of the word in its mapping."},
	{"width", T_PYSSIZET, offsetof(struct flag, width), READONLY, "4 or 8 bytes."},
	{"mapping", T_OBJECT_EX, offsetof(struct flag, mapping), READONLY,
	 "The mapping that the word lies in."},
	{NULL, 0, 0, 0, NULL},
};

static PyType_Slot flag_slots[] = {
	{Py_tp_doc, "Flag(mapping, offset=0, width=4)\n--\n\n"
		    "One aligned 32- or 64-bit word of a mapping, used for signalling."},
	{Py_tp_init, flag_init},
	{Py_tp_dealloc, flag_dealloc},
	{Py_tp_traverse, flag_traverse},
	{Py_tp_clear, flag_clear},
	{Py_tp_methods, flag_methods},
	{Py_tp_members, flag_members},
	{0, NULL},
};

PyType_Spec gdr_flag_spec = {
	.name = "gdrpy._core._mapping.Flag",
	.basicsize = sizeof(struct flag),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
	.slots = flag_slots,
};
