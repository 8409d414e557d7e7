/* SPDX-License-Identifier: MIT */
/* gdrpy._core._mapping.Inbox: the reader of a ring of records from kernels. */
#include "inbox.h"

#include <structmember.h>

PyTypeObject *core_inbox_type_object;

bool core_inbox_usable(struct inbox *self, const char *method)
{
	return core_ring_usable(&self->memory, "Inbox", method);
}

static bool may_pop(void *object, const char *method)
{
	struct inbox *self = object;

	if (!core_inbox_usable(self, method))
		return false;
	return !gdr_inbox_is_closed(&self->reader) ||
	       core_raise(core_error_closed, "%s: the inbox is closed", method);
}

static uint64_t ready(void *self, uint64_t most)
{
	return gdr_inbox_ready(&((struct inbox *)self)->reader, most);
}

static void take(void *self, char *records, uint64_t count)
{
	gdr_inbox_pop(&((struct inbox *)self)->reader, records, count);
}

static bool ended(void *self)
{
	return gdr_inbox_ended(&((struct inbox *)self)->reader);
}

static bool has_news(void *object)
{
	struct inbox *self = object;

	return gdr_inbox_ready(&self->reader, 1) || gdr_inbox_ended(&self->reader);
}

static struct core_popping popping(struct inbox *self, const char *method)
{
	return (struct core_popping){.self = self,
				     .method = method,
				     .may_pop = may_pop,
				     .ready = ready,
				     .take = take,
				     .ended = ended,
				     .has_news = has_news,
				     .nbytes = self->reader.slots.record_nbytes,
				     .looks = CORE_LOOKS_CACHED};
}

static PyObject *inbox_pop(struct inbox *self, CORE_PARAMETERS)
{
	const struct core_popping end = popping(self, "Inbox.pop");

	return core_pop(&end, CORE_ARGUMENTS);
}

static PyObject *inbox_pop_many(struct inbox *self, CORE_PARAMETERS)
{
	const struct core_popping end = popping(self, "Inbox.pop_many");

	return core_pop_many(&end, CORE_ARGUMENTS);
}

static PyObject *inbox_close(struct inbox *self, void *Py_UNUSED(unused))
{
	if (core_ring_is_ours(&self->memory))
		gdr_inbox_close(&self->reader);
	else
		self->reader.told |= GDR_INBOX_CLOSED; /* a forked child's alone */
	Py_RETURN_NONE;
}

static PyObject *inbox_popped(struct inbox *self, void *Py_UNUSED(unused))
{
	if (!core_inbox_usable(self, "Inbox.popped"))
		return NULL;
	return PyLong_FromUnsignedLongLong(self->reader.popped);
}

static PyObject *inbox_closed(struct inbox *self, void *Py_UNUSED(unused))
{
	return PyBool_FromLong(!self->memory.gpu || gdr_inbox_is_closed(&self->reader));
}

static PyObject *inbox_c_reader(struct inbox *self, void *Py_UNUSED(unused))
{
	if (!may_pop(self, "Inbox.c_reader"))
		return NULL;
	return PyLong_FromVoidPtr(&self->reader);
}

CORE_METHOD_ALONE(inbox_pop_alone, inbox, inbox_pop)
CORE_METHOD_ALONE(inbox_pop_many_alone, inbox, inbox_pop_many)
CORE_ALONE(inbox_close, inbox)
CORE_ALONE(inbox_popped, inbox)

static int inbox_init(struct inbox *self, PyObject *args, PyObject *kwargs)
{
	static const struct core_ring_needs needs = {.gpu = CORE_INBOX_NBYTES,
						     .host = CORE_INBOX_SLOTS,
						     .host_record = CORE_SLOT_FACTOR,
						     .capacity = CORE_SLOTS_MAX};
	struct core_ring_memory memory = {0};
	struct gdr_inbox_reader reader = {0};
	bool first;

	if (!core_init_once("Inbox", self->memory.gpu) ||
	    !core_ring_hold(&memory, "Inbox", args, kwargs, &needs, &reader.slots, NULL))
		return -1;
	Py_BEGIN_ALLOW_THREADS; /* clearing many slots takes long; no other thread has them */
	core_inbox_begin(&reader, memory.gpu->type, memory.gpu->address, memory.host->address,
			 memory.gpu_ptr, memory.host_ptr);
	Py_END_ALLOW_THREADS;

	CORE_BEGIN_ALONE(self);
	first = core_init_once("Inbox", self->memory.gpu);
	if (first) {
		self->reader = reader;
		self->memory = memory;
	}
	CORE_END_ALONE();
	if (first)
		return 0;
	core_ring_let_go(&memory);
	return -1;
}

static int inbox_clear(struct inbox *self)
{
	core_ring_let_go(&self->memory);
	return 0;
}

CORE_TRAVERSE(inbox, Py_VISIT(self->memory.gpu); Py_VISIT(self->memory.host))
CORE_DEALLOC(inbox)

static PyMethodDef inbox_methods[] = {
	{"pop", CORE_FASTCALL(inbox_pop_alone),
	 "pop(timeout=None)\n--\n\n"
	 "Wait for a record and take it, as bytes; None at the inbox's end.\n\n"
	 "While it waits, other Python threads run and signals are handled.\n"
	 "Raises Timeout, Closed, Forked."},
	{"pop_many", CORE_FASTCALL(inbox_pop_many_alone),
	 "pop_many(limit=None, timeout=None)\n--\n\n"
	 "Wait for a record and take all that are ready, up to `limit`, as concatenated bytes;\n"
	 "no bytes at the inbox's end. Raises as pop() does."},
	{"close", (PyCFunction)inbox_close_alone, METH_NOARGS,
	 "close()\n--\n\n"
	 "Take no more records: pushes that find no room return false. May be called again.\n\n"
	 "The memory is freed with the Inbox and its writers: keep them until the kernels\n"
	 "that push have ended."},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef inbox_getset[] = {
	{"popped", (getter)inbox_popped_alone, NULL, "How many records were taken.", NULL},
	{"closed", (getter)inbox_closed, NULL, "Whether close() has been called.", NULL},
	{"c_reader", (getter)inbox_c_reader, NULL,
	 "Address of the ``struct gdr_inbox_reader`` for C code of this process, which calls the\n"
	 "functions of gdrpy/inbox.h. No other thread may take records or close the\n"
	 "inbox meanwhile.",
	 NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef inbox_members[] = {
	{"record_nbytes", T_ULONGLONG, offsetof(struct inbox, reader.slots.record_nbytes), READONLY,
	 "Bytes of a record."},
	{"capacity", T_ULONGLONG, offsetof(struct inbox, reader.slots.capacity), READONLY,
	 "How many records the ring holds."},
	{NULL, 0, 0, 0, NULL},
};

static PyType_Slot inbox_slots[] = {
	{Py_tp_doc, "Inbox(memory, host, record_nbytes, capacity)\n--\n\n"
		    "The reader of a ring of records from kernels."},
	{Py_tp_init, inbox_init},
	CORE_COLLECTED(inbox),
	{Py_tp_methods, inbox_methods},
	{Py_tp_getset, inbox_getset},
	{Py_tp_members, inbox_members},
	{0, NULL},
};

CORE_TYPE(inbox, "Inbox", Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC);
