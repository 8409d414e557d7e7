/* SPDX-License-Identifier: MIT */
/* gdrpy._core._mapping.ChannelReader: the consumer's end of a channel, on the CPU. */
#include "channel.h"

#include "spin.h"

#include <structmember.h>

struct reader {
	PyObject_HEAD struct channel *channel; /* NULL until it is initialized */
	struct core_ring_consumer consumer;
	bool closed;
};

struct reader_wait {
	struct reader *reader;
	const char *method;
};

static bool reader_usable(struct reader *self, const char *method)
{
	if (!self->channel)
		return core_raise(PyExc_TypeError, "%s: the reader was never initialized", method);
	if (!core_channel_usable(self->channel, method))
		return false;
	if (self->closed)
		return core_raise(core_error_closed, "%s: the reader is closed", method);
	if (self->consumer.broken)
		return core_raise(
			core_error_closed,
			"%s: the producer's counter was overwritten with an impossible value",
			method);
	return true;
}

static bool may_go_on(void *context)
{
	struct reader_wait *wait = context;

	return reader_usable(wait->reader, wait->method);
}

static bool look(void *context)
{
	struct reader *self = ((struct reader_wait *)context)->reader;

	return core_ring_has_news(&self->consumer) ||
	       __atomic_load_n(&self->closed, __ATOMIC_RELAXED);
}

static int64_t ready_of(struct reader *self, Py_ssize_t wanted)
{
	int64_t ready = (int64_t)core_ring_ready(&self->consumer, (uint64_t)wanted);

	return ready < wanted ? ready : wanted;
}

/* Wait for records; returns how many are ready, up to `wanted`, 0 at the end, -1 on error. */
static int64_t wait_for_records(struct reader *self, const char *method, Py_ssize_t wanted,
				PyObject *limit)
{
	struct reader_wait wait = {self, method};
	struct core_spin spin = {.look = look, .may_go_on = may_go_on, .context = &wait};
	enum core_spin_end end;
	int64_t deadline;
	int64_t ready;

	if (!core_as_timeout(method, limit, &spin.timeout) || !reader_usable(self, method))
		return -1;
	ready = ready_of(self, wanted);
	if (ready)
		return ready;

	spin.looks = self->consumer.ring.type == CORE_MAPPING_CACHED ? CORE_LOOKS_CACHED
								     : CORE_LOOKS_UNCACHED;
	deadline = core_deadline(spin.timeout);
	do {
		spin.timeout = core_time_left(deadline);
		end = core_spin(&spin);
		if (end == CORE_SPIN_LATE)
			PyErr_Format(core_error_timeout, "%s: no record arrived in time", method);
		if (end != CORE_SPIN_CAME || !reader_usable(self, method))
			return -1;
		if (core_ring_ended(&self->consumer))
			return 0;
		ready = ready_of(self, wanted); /* another thread may have taken it */
	} while (!ready);
	return ready;
}

static PyObject *take(struct reader *self, int64_t count)
{
	int64_t nbytes = count * (int64_t)self->consumer.ring.record_nbytes;
	PyObject *records = PyBytes_FromStringAndSize(NULL, nbytes);

	if (records)
		core_ring_take(&self->consumer, PyBytes_AsString(records), (uint64_t)count);
	return records;
}

static PyObject *reader_pop(struct reader *self, CORE_PARAMETERS)
{
	static const char *const names[] = {"timeout", NULL};
	static const char method[] = "ChannelReader.pop";
	PyObject *arg[1];
	int64_t ready;

	if (!core_parse(method, CORE_ARGUMENTS, names, 0, arg))
		return NULL;
	ready = wait_for_records(self, method, 1, arg[0]);
	if (ready < 0)
		return NULL;
	return ready ? take(self, ready) : Py_NewRef(Py_None);
}

static PyObject *reader_pop_many(struct reader *self, CORE_PARAMETERS)
{
	static const char *const names[] = {"limit", "timeout", NULL};
	static const char method[] = "ChannelReader.pop_many";
	Py_ssize_t limit;
	PyObject *arg[2];
	int64_t ready;

	if (!core_parse(method, CORE_ARGUMENTS, names, 0, arg))
		return NULL;
	limit = core_as_size(method, "limit", arg[0] == Py_None ? NULL : arg[0], PY_SSIZE_T_MAX);
	if (limit < 0)
		return NULL;
	if (!limit)
		return PyErr_Format(PyExc_ValueError, "%s: limit must be 1 or more, not 0", method);
	ready = wait_for_records(self, method, limit, arg[1]);
	return ready < 0 ? NULL : take(self, ready);
}

static PyObject *reader_close(struct reader *self, void *Py_UNUSED(unused))
{
	if (self->channel && !self->closed) {
		if (self->channel->memory->generation == core_fork_generation)
			core_ring_stop(&self->consumer.ring);
		__atomic_store_n(&self->closed, true, __ATOMIC_RELAXED);
	}
	Py_RETURN_NONE;
}

static PyObject *reader_closed(struct reader *self, void *Py_UNUSED(unused))
{
	return PyBool_FromLong(!self->channel || __atomic_load_n(&self->closed, __ATOMIC_RELAXED));
}

CORE_METHOD_ALONE(reader_pop_alone, reader, reader_pop)
CORE_METHOD_ALONE(reader_pop_many_alone, reader, reader_pop_many)
CORE_ALONE(reader_close, reader)

static int reader_init(struct reader *self, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"channel", NULL};
	struct channel *channel;

	if (!core_init_once("ChannelReader", self->channel) ||
	    !PyArg_ParseTupleAndKeywords(args, kwargs, "O!:ChannelReader", names,
					 core_channel_type_object, &channel) ||
	    !core_channel_usable(channel, "ChannelReader"))
		return -1;
	self->channel = (struct channel *)Py_NewRef((PyObject *)channel);
	self->consumer.ring = channel->producer.ring;
	core_ring_consumer_begin(&self->consumer);
	return 0;
}

static int reader_clear(struct reader *self)
{
	Py_CLEAR(self->channel);
	return 0;
}

CORE_TRAVERSE(reader, Py_VISIT(self->channel))
CORE_DEALLOC(reader)

static PyMethodDef reader_methods[] = {
	{"pop", CORE_FASTCALL(reader_pop_alone),
	 "pop(timeout=None)\n--\n\n"
	 "Wait for a record and take it, as bytes; None at the channel's end.\n\n"
	 "While it waits, other Python threads run and signals are handled.\n"
	 "Raises Timeout, Closed (the reader is, or the ring was overwritten), Forked."},
	{"pop_many", CORE_FASTCALL(reader_pop_many_alone),
	 "pop_many(limit=None, timeout=None)\n--\n\n"
	 "Wait for a record and take all that are ready, up to `limit`, as concatenated bytes;\n"
	 "no bytes at the channel's end. Raises as pop() does."},
	{"close", (PyCFunction)reader_close_alone, METH_NOARGS,
	 "close()\n--\n\n"
	 "Stop taking records: later pushes raise Closed. May be called again."},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef reader_getset[] = {
	{"closed", (getter)reader_closed, NULL, "Whether close() has been called.", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef reader_members[] = {
	{"channel", T_OBJECT_EX, offsetof(struct reader, channel), READONLY,
	 "The channel that it reads and keeps alive."},
	{NULL, 0, 0, 0, NULL},
};

static PyType_Slot reader_slots[] = {
	{Py_tp_doc, "ChannelReader(channel)\n--\n\nThe consumer's end of a channel, on the CPU."},
	{Py_tp_init, reader_init},
	CORE_COLLECTED(reader),
	{Py_tp_methods, reader_methods},
	{Py_tp_getset, reader_getset},
	{Py_tp_members, reader_members},
	{0, NULL},
};

CORE_TYPE(reader, "ChannelReader", Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC);
