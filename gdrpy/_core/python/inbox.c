/* SPDX-License-Identifier: MIT */
/* gdrpy._core._mapping.Inbox: the reader of a ring of records from kernels. */
#include "inbox.h"

#include <structmember.h>

PyTypeObject *core_inbox_type_object;

bool core_inbox_usable(struct inbox *self, const char *method)
{
	return core_ring_usable(&self->memory, "Inbox", method);
}

/* Below this number, records that are not whole never will be. */
static uint64_t settled(const struct inbox *self)
{
	uint64_t known = __atomic_load_n(&self->settled, __ATOMIC_RELAXED), began;

	if (self->memory.end != CORE_CPU_END)
		return known;
	began = core_ring_load(&self->memory, CORE_INBOX_BEGAN);
	return began & GDR_INBOX_CLOSED || began < known ? known : began;
}

static uint64_t ready(void *object, uint64_t most)
{
	struct inbox *self = object;
	uint64_t count = gdr_inbox_ready(&self->reader, most), below;

	if (count || gdr_inbox_is_closed(&self->reader))
		return count;
	below = settled(self);
	if (self->reader.popped < below) {
		core_inbox_pass(&self->reader, below);
		count = gdr_inbox_ready(&self->reader, most);
	}
	return count;
}

static bool may_pop(void *object, const char *method)
{
	struct inbox *self = object;

	if (!core_inbox_usable(self, method))
		return false;
	if (gdr_inbox_is_closed(&self->reader))
		return core_raise(core_error_closed, "%s: the inbox is closed", method);
	return !self->state || ready(self, 1) || gdr_inbox_ended(&self->reader) ||
	       core_ring_refuse(&self->memory, method, self->state);
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

	return gdr_inbox_ready(&self->reader, 1) || gdr_inbox_ended(&self->reader) ||
	       __atomic_load_n(&self->state, __ATOMIC_RELAXED) ||
	       self->reader.popped < settled(self);
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
	if (core_ring_is_ours(&self->memory)) {
		if (self->memory.end == CORE_CPU_END && !gdr_inbox_is_closed(&self->reader))
			core_ring_store(&self->memory, CORE_INBOX_CLOSER, self->memory.number);
		gdr_inbox_close(&self->reader);
	} else
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

static PyObject *inbox_set_state(struct inbox *self, PyObject *args)
{
	unsigned long long settled;
	enum core_ring_state state;

	if (!core_ring_told(&self->memory, args, &state, &settled))
		return NULL;
	if (settled > self->settled && !(settled & GDR_INBOX_CLOSED))
		__atomic_store_n(&self->settled, settled, __ATOMIC_RELAXED);
	__atomic_store_n(&self->state, state, __ATOMIC_RELAXED);
	Py_RETURN_NONE;
}

static PyObject *inbox_reserved(struct inbox *self, void *Py_UNUSED(unused))
{
	if (!core_inbox_usable(self, "Inbox._reserved"))
		return NULL;
	return PyLong_FromUnsignedLongLong(core_inbox_reserved(&self->reader));
}

static PyObject *inbox_closer(struct inbox *self, void *Py_UNUSED(unused))
{
	if (!core_ring_is_end(&self->memory, CORE_KERNEL_END))
		return NULL;
	return PyLong_FromUnsignedLongLong(core_ring_load(&self->memory, CORE_INBOX_CLOSER));
}

static PyObject *inbox_descriptor(struct inbox *self, void *Py_UNUSED(unused))
{
	struct gdr_inbox described;

	if (!core_ring_is_end(&self->memory, CORE_KERNEL_END))
		return NULL;
	described =
		core_inbox_described(&self->reader, self->memory.gpu_ptr, self->memory.host_ptr);
	return PyBytes_FromStringAndSize((const char *)&described, sizeof(described));
}

static PyObject *inbox_end(struct inbox *self, void *Py_UNUSED(unused))
{
	if (!core_ring_is_end(&self->memory, CORE_KERNEL_END))
		return NULL;
	core_inbox_end_reading(&self->reader);
	Py_RETURN_NONE;
}

static PyObject *inbox_begin(struct inbox *self, PyObject *object)
{
	uint64_t number;

	if (!core_ring_is_end(&self->memory, CORE_KERNEL_END) ||
	    !core_as_word("_begin", object, 8, &number))
		return NULL;
	__atomic_store_n(self->reader.end, 0, __ATOMIC_RELEASE);
	/* What a kernel reserved before is whole by now, or never will be. */
	core_ring_store(&self->memory, CORE_INBOX_BEGAN, core_inbox_reserved(&self->reader));
	if (!number)
		core_inbox_end_reading(&self->reader);
	else if (!core_inbox_give_room(&self->reader))
		return PyErr_Format(core_error_closed,
				    "KernelEnd.wait: a counter of the inbox was overwritten with "
				    "an impossible value: delete the inbox");
	Py_RETURN_FALSE;
}

CORE_METHOD_ALONE(inbox_pop_alone, inbox, inbox_pop)
CORE_METHOD_ALONE(inbox_pop_many_alone, inbox, inbox_pop_many)
CORE_ALONE(inbox_close, inbox)
CORE_ALONE(inbox_set_state, inbox)
CORE_ALONE(inbox_popped, inbox)

/* Make the ring, or take it up from the end before; false with an exception set. */
static bool begin(struct gdr_inbox_reader *reader, const struct core_ring_memory *memory,
		  uint64_t *settled)
{
	char *gpu = memory->gpu->address, *host = memory->host->address;

	if (memory->end == CORE_BOTH_ENDS) {
		Py_BEGIN_ALLOW_THREADS; /* clearing slots takes long; no other thread has them */
		core_inbox_begin(reader, memory->gpu->type, gpu, host, memory->gpu_ptr,
				 memory->host_ptr);
		Py_END_ALLOW_THREADS;
		return true;
	}
	core_inbox_place(reader, gpu, host);
	if (memory->end == CORE_KERNEL_END) {
		core_ring_store(memory, CORE_INBOX_BEGAN, core_inbox_reserved(reader));
		return true;
	}
	*settled = core_ring_load(memory, CORE_INBOX_BEGAN);
	if ((core_ring_load(memory, CORE_INBOX_HEAD) | *settled) & GDR_INBOX_CLOSED)
		return core_raise(
			core_error_closed,
			"Inbox: a counter was overwritten with an impossible value: delete "
			"the inbox");
	gdr_inbox_begin(reader);
	core_ring_store(memory, CORE_INBOX_CLOSER, 0);
	return true;
}

static int inbox_init(struct inbox *self, PyObject *args, PyObject *kwargs)
{
	static const struct core_ring_needs needs = {.gpu = CORE_INBOX_NBYTES,
						     .host = CORE_INBOX_SLOTS,
						     .host_record = CORE_SLOT_FACTOR,
						     .capacity = CORE_SLOTS_MAX};
	struct core_ring_memory memory = {0};
	struct gdr_inbox_reader reader = {0};
	uint64_t settled = 0;
	bool done;

	if (!core_init_once("Inbox", self->memory.gpu) ||
	    !core_ring_hold(&memory, "Inbox", args, kwargs, &needs, &reader.slots, NULL))
		return -1;
	done = begin(&reader, &memory, &settled);

	CORE_BEGIN_ALONE(self);
	done = done && core_init_once("Inbox", self->memory.gpu);
	if (done) {
		self->reader = reader;
		self->memory = memory;
		self->settled = settled;
	}
	CORE_END_ALONE();
	if (done)
		return 0;
	core_ring_let_go(&memory);
	return -1;
}

static int inbox_clear(struct inbox *self)
{
	core_ring_let_go(&self->memory);
	return 0;
}

CORE_TRAVERSE(inbox, CORE_VISIT_RING(self->memory))
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
	{"_set_state", (PyCFunction)inbox_set_state_alone, METH_VARARGS,
	 "Note what is at the other end, and from which number on its records may yet come."},
	{"_descriptor", (PyCFunction)inbox_descriptor, METH_NOARGS, "What kernels are given."},
	{"_begin", (PyCFunction)inbox_begin, METH_O, "Begin a kernel's run for a reader, or 0."},
	{"_leave", core_ring_leave, METH_NOARGS, "Have what pops or pushes raise Closed."},
	{"_end", (PyCFunction)inbox_end, METH_NOARGS, "Tell producers that none takes records."},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef inbox_getset[] = {
	{"popped", (getter)inbox_popped_alone, NULL, "How many records were taken.", NULL},
	{"closed", (getter)inbox_closed, NULL, "Whether close() has been called.", NULL},
	{"_reserved", (getter)inbox_reserved, NULL, "How many numbers producers took.", NULL},
	{"_closer", (getter)inbox_closer, NULL, "The reader that closed it, or 0.", NULL},
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
