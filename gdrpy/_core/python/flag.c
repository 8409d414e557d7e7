/* SPDX-License-Identifier: MIT */
/* gdrpy._core._mapping.Flag: one aligned word of a mapping, for signalling. */
#include "mapping.h"
#include "spin.h"

#include <structmember.h>

struct flag {
	PyObject_HEAD struct mapping *mapping;
	Py_ssize_t offset;
	Py_ssize_t width;
};

/* The conditions of cuStreamWaitValue, with the same numbers. */
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
	if (!self->mapping)
		return core_raise(PyExc_TypeError, "%s: the Flag was never initialized", method);
	return to_store ? core_mapping_writable(self->mapping, method)
			: core_mapping_usable(self->mapping, method);
}

/* As core_mapping_enter(). */
static bool flag_enter(struct flag *self, const char *method, bool to_store)
{
	return flag_usable(self, method, to_store) &&
	       core_mapping_enter_checked(self->mapping, method);
}

static char *flag_word(struct flag *self)
{
	return self->mapping->address + self->offset;
}

static PyObject *flag_set(struct flag *self, PyObject *object)
{
	uint64_t value;

	/* __index__() may run Python code, so it is called before the mapping is checked. */
	if (!core_as_word("Flag.set", object, self->width, &value) ||
	    !flag_enter(self, "Flag.set", true))
		return NULL;

	/* Earlier stores must be visible before the flag is. */
	core_store_fence();
	core_word_store(flag_word(self), self->width, value);
	core_store_fence();
	core_mapping_leave(self->mapping);
	Py_RETURN_NONE;
}

static PyObject *flag_get(struct flag *self, PyObject *Py_UNUSED(unused))
{
	uint64_t value;

	if (!flag_enter(self, "Flag.get", false))
		return NULL;
	value = core_mapping_load_word(self->mapping, self->offset, self->width);
	core_mapping_leave(self->mapping);
	return PyLong_FromUnsignedLongLong(value);
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
	return core_raise(PyExc_ValueError,
			  "Flag.wait: op must be '>=', '==', '&' or 'nor', not %R", object);
}

struct flag_wait {
	struct flag *flag;
	enum condition condition;
	uint64_t value; /* the value waited for */
	uint64_t found; /* the value last read */
};

static bool look(void *context)
{
	struct flag_wait *wait = context;
	Py_ssize_t width = wait->flag->width;

	wait->found = core_word_load(flag_word(wait->flag), width);
	return holds(wait->condition, width, wait->found, wait->value);
}

static bool may_go_on(void *context)
{
	struct flag_wait *wait = context;

	return flag_usable(wait->flag, "Flag.wait", false);
}

static PyObject *flag_wait(struct flag *self, CORE_PARAMETERS)
{
	static const char *const names[] = {"value", "timeout", "op", NULL};
	struct flag_wait wait = {.flag = self};
	struct core_spin spin = {.look = look, .may_go_on = may_go_on, .context = &wait};
	enum core_spin_end end;
	PyObject *arg[3];

	if (!core_parse("Flag.wait", CORE_ARGUMENTS, names, 1, arg) ||
	    !flag_usable(self, "Flag.wait", false) ||
	    !core_as_word("Flag.wait", arg[0], self->width, &wait.value) ||
	    !core_as_timeout("Flag.wait", arg[1], &spin.timeout) ||
	    !parse_condition(arg[2], &wait.condition) ||
	    !core_mapping_hold(self->mapping, "Flag.wait", CORE_ONE_VIEW))
		return NULL;

	spin.looks = self->mapping->type == CORE_MAPPING_CACHED ? CORE_LOOKS_CACHED
								: CORE_LOOKS_UNCACHED;
	end = core_spin(&spin);
	core_mapping_let_go(self->mapping, CORE_ONE_VIEW);

	if (end == CORE_SPIN_CAME) {
		core_load_fence(); /* announced data is read after the flag */
		return PyLong_FromUnsignedLongLong(wait.found);
	}
	if (end == CORE_SPIN_LATE)
		PyErr_Format(core_error_timeout,
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

	if (!core_init_once("Flag", self->mapping) ||
	    !PyArg_ParseTupleAndKeywords(args, kwargs, "O!|OO:Flag", names,
					 core_mapping_type_object, &mapping, &offset_object,
					 &width_object))
		return -1;
	if (!core_parse_word("Flag", offset_object, width_object, &offset, &width) ||
	    !core_mapping_usable((struct mapping *)mapping, "Flag") ||
	    !core_mapping_word((struct mapping *)mapping, "Flag", offset, width))
		return -1;

	self->mapping = (struct mapping *)Py_NewRef(mapping);
	self->offset = offset;
	self->width = width;
	return 0;
}

static int flag_clear(struct flag *self)
{
	Py_CLEAR(self->mapping);
	return 0;
}

CORE_TRAVERSE(flag, Py_VISIT(self->mapping))
CORE_DEALLOC(flag)

static PyMethodDef flag_methods[] = {
	{"set", (PyCFunction)flag_set, METH_O,
	 "set(value)\n--\n\n"
	 "Store the word. Earlier writes to the mapping are visible before it is,\n"
	 "and it leaves the CPU before set() returns. Raises ValueError if `value` does not fit."},
	{"get", (PyCFunction)flag_get, METH_NOARGS, "get()\n--\n\nLoad the word."},
	{"wait", CORE_FASTCALL(flag_wait),
	 "wait(value, timeout=None, op='>=')\n--\n\n"
	 "Wait until the word meets the condition, and return it.\n\n"
	 "Args:\n"
	 "    value: What the word is compared with.\n"
	 "    timeout: For how many seconds to wait; None waits forever.\n"
	 "    op: The comparison, as of cuStreamWaitValue: '>=' (cyclic: the signed difference is\n"
	 "        not negative), '==', '&' (a common bit) or 'nor' (a bit that is set in "
	 "neither).\n\n"
	 "Meanwhile other Python threads run and signals are handled. Raises Timeout."},
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
	CORE_COLLECTED(flag),
	{Py_tp_methods, flag_methods},
	{Py_tp_members, flag_members},
	{0, NULL},
};

CORE_TYPE(flag, "Flag", Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC);
