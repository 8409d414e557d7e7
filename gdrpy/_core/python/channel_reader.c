/* SPDX-License-Identifier: MIT */
/* gdrpy._core._mapping.ChannelReader: the consumer's end of a channel, on the CPU. */
#include "channel.h"

#include <structmember.h>

struct reader {
	PyObject_HEAD struct channel *channel; /* NULL until it is initialized */
	struct core_ring_consumer consumer;
	bool closed;
};

static bool may_pop(void *object, const char *method)
{
	struct reader *self = object;

	if (!self->channel)
		return core_raise(PyExc_TypeError, "%s: the reader was never initialized", method);
	if (!core_channel_usable(self->channel, method) ||
	    !core_ring_check_place(&self->channel->memory, method))
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

static bool has_news(void *object)
{
	struct reader *self = object;

	return core_ring_has_news(&self->consumer) ||
	       __atomic_load_n(&self->closed, __ATOMIC_RELAXED);
}

static uint64_t ready(void *self, uint64_t most)
{
	uint64_t count = core_ring_ready(&((struct reader *)self)->consumer, most);

	return count < most ? count : most;
}

static void take(void *self, char *records, uint64_t count)
{
	core_ring_take(&((struct reader *)self)->consumer, records, count);
}

static bool ended(void *self)
{
	return core_ring_ended(&((struct reader *)self)->consumer);
}

static struct core_popping popping(struct reader *self, const char *method)
{
	const struct core_ring *ring = &self->consumer.ring;

	return (struct core_popping){.self = self,
				     .method = method,
				     .may_pop = may_pop,
				     .ready = ready,
				     .take = take,
				     .ended = ended,
				     .has_news = has_news,
				     .nbytes = ring->record_nbytes,
				     .looks = ring->type == CORE_MAPPING_CACHED
						      ? CORE_LOOKS_CACHED
						      : CORE_LOOKS_UNCACHED};
}

static PyObject *reader_pop(struct reader *self, CORE_PARAMETERS)
{
	const struct core_popping end = popping(self, "ChannelReader.pop");

	return core_pop(&end, CORE_ARGUMENTS);
}

static PyObject *reader_pop_many(struct reader *self, CORE_PARAMETERS)
{
	const struct core_popping end = popping(self, "ChannelReader.pop_many");

	return core_pop_many(&end, CORE_ARGUMENTS);
}

static PyObject *reader_close(struct reader *self, void *Py_UNUSED(unused))
{
	if (self->channel && !self->closed) {
		if (core_ring_has_place(&self->channel->memory))
			core_ring_set_stopped(&self->consumer.ring, true);
		__atomic_store_n(&self->closed, true, __ATOMIC_RELAXED);
	}
	Py_RETURN_NONE;
}

static PyObject *reader_popped(struct reader *self, void *Py_UNUSED(unused))
{
	if (self->channel && !core_channel_usable(self->channel, "ChannelReader.popped"))
		return NULL;
	return PyLong_FromUnsignedLongLong(self->consumer.head);
}

static PyObject *reader_closed(struct reader *self, void *Py_UNUSED(unused))
{
	return PyBool_FromLong(!self->channel || __atomic_load_n(&self->closed, __ATOMIC_RELAXED));
}

CORE_METHOD_ALONE(reader_pop_alone, reader, reader_pop)
CORE_METHOD_ALONE(reader_pop_many_alone, reader, reader_pop_many)
CORE_ALONE(reader_close, reader)
CORE_ALONE(reader_popped, reader)

static int reader_init(struct reader *self, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"channel", NULL};
	struct channel *channel;

	if (!core_init_once("ChannelReader", self->channel) ||
	    !PyArg_ParseTupleAndKeywords(args, kwargs, "O!:ChannelReader", names,
					 core_channel_type_object, &channel) ||
	    !core_channel_usable(channel, "ChannelReader"))
		return -1;
	if (channel->memory.end == CORE_BOTH_ENDS && core_ring_stopped(&channel->producer.ring)) {
		PyErr_Format(core_error_closed, "Channel.reader: the consumer has stopped: make "
						"another Channel");
		return -1;
	}
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
	{"popped", (getter)reader_popped_alone, NULL,
	 "How many records of the channel were taken: the number of the next one.", NULL},
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
