/* SPDX-License-Identifier: MIT */
/* gdrpy._core._mapping.InboxWriter: the producers' end of an inbox, on the CPU. */
#include "inbox.h"

#include <structmember.h>

struct writer {
	PyObject_HEAD struct inbox *inbox; /* NULL until it is initialized */
	struct core_inbox_writer writer;
	bool closed;
};

static bool may_push(void *object, const char *method)
{
	struct writer *self = object;
	const char *reason;

	if (!self->inbox)
		return core_raise(PyExc_TypeError, "%s: the writer was never initialized", method);
	if (!core_inbox_usable(self->inbox, method) ||
	    !core_ring_check_place(&self->inbox->memory, method))
		return false;
	if (self->closed)
		reason = "the writer is closed";
	else if (gdr_inbox_closed(&self->writer.inbox))
		reason = "the inbox is closed";
	else if (__atomic_load_n(self->inbox->reader.end, __ATOMIC_RELAXED))
		reason = "the inbox has ended: its producers have said that no record follows";
	else if (self->writer.broken)
		reason = "the reader's counter was overwritten with an impossible value";
	else
		return true;
	return core_raise(core_error_closed, "%s: %s", method, reason);
}

static uint64_t push_records(void *self, const char *records, uint64_t count)
{
	return core_inbox_push(&((struct writer *)self)->writer, records, count);
}

static bool has_news(void *object)
{
	struct writer *self = object;

	return core_inbox_moved(&self->writer) || __atomic_load_n(&self->closed, __ATOMIC_RELAXED);
}

static PyObject *push(struct writer *self, const char *method, bool many, CORE_PARAMETERS)
{
	const struct core_pushing end = {.self = self,
					 .method = method,
					 .may_push = may_push,
					 .push = push_records,
					 .has_news = has_news,
					 .nbytes = self->writer.inbox.slots.record_nbytes,
					 .capacity = self->writer.inbox.slots.capacity,
					 .pushed = &self->writer.reserved};

	return core_push(&end, many, CORE_ARGUMENTS);
}

static PyObject *writer_close(struct writer *self, void *Py_UNUSED(unused))
{
	if (self->inbox && !self->closed) {
		if (core_ring_has_place(&self->inbox->memory))
			gdr_inbox_finish(&self->writer.inbox);
		__atomic_store_n(&self->closed, true, __ATOMIC_RELAXED);
	}
	Py_RETURN_NONE;
}

static PyObject *writer_closed(struct writer *self, void *Py_UNUSED(unused))
{
	return PyBool_FromLong(!self->inbox || __atomic_load_n(&self->closed, __ATOMIC_RELAXED));
}

CORE_METHOD_ALONE(writer_push, writer, push, "InboxWriter.push", false)
CORE_METHOD_ALONE(writer_push_many, writer, push, "InboxWriter.push_many", true)
CORE_ALONE(writer_close, writer)

static int writer_init(struct writer *self, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"inbox", NULL};
	struct inbox *inbox;

	if (!core_init_once("InboxWriter", self->inbox) ||
	    !PyArg_ParseTupleAndKeywords(args, kwargs, "O!:InboxWriter", names,
					 core_inbox_type_object, &inbox) ||
	    !core_inbox_usable(inbox, "InboxWriter"))
		return -1;
	self->inbox = (struct inbox *)Py_NewRef((PyObject *)inbox);
	core_inbox_writer_begin(&self->writer, &inbox->reader, inbox->memory.gpu->address);
	return 0;
}

static int writer_clear(struct writer *self)
{
	Py_CLEAR(self->inbox);
	return 0;
}

CORE_TRAVERSE(writer, Py_VISIT(self->inbox))
CORE_DEALLOC(writer)

static PyMethodDef writer_methods[] = {
	{"push", CORE_FASTCALL(writer_push),
	 "push(record, timeout=None)\n--\n\n"
	 "Push one record: a contiguous buffer of `record_nbytes` bytes.\n\n"
	 "While the ring is full, this waits up to `timeout` seconds; meanwhile other Python\n"
	 "threads run and signals are handled.\n"
	 "Raises ValueError, Timeout, Closed (the writer or the inbox is), Forked."},
	{"push_many", CORE_FASTCALL(writer_push_many),
	 "push_many(records, timeout=None)\n--\n\n"
	 "Push the records of a contiguous buffer in order, like push().\n\n"
	 "If this raises Timeout, Closed or the exception of a signal handler, the first ones may\n"
	 "have been pushed."},
	{"close", (PyCFunction)writer_close_alone, METH_NOARGS,
	 "close()\n--\n\n"
	 "Tell the reader that no record follows. May be called again."},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef writer_getset[] = {
	{"closed", (getter)writer_closed, NULL, "Whether close() has been called.", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef writer_members[] = {
	{"inbox", T_OBJECT_EX, offsetof(struct writer, inbox), READONLY,
	 "The inbox that it pushes into and keeps alive."},
	{NULL, 0, 0, 0, NULL},
};

static PyType_Slot writer_slots[] = {
	{Py_tp_doc, "InboxWriter(inbox)\n--\n\nThe producers' end of an inbox, on the CPU."},
	{Py_tp_init, writer_init},
	CORE_COLLECTED(writer),
	{Py_tp_methods, writer_methods},
	{Py_tp_getset, writer_getset},
	{Py_tp_members, writer_members},
	{0, NULL},
};

CORE_TYPE(writer, "InboxWriter", Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC);
