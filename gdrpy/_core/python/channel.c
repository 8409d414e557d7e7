/* SPDX-License-Identifier: MIT */
/* gdrpy._core._mapping.Channel: the producer's end of a ring of records for a GPU. */
#include "channel.h"

#include <structmember.h>

PyTypeObject *core_channel_type_object;

bool core_channel_usable(struct channel *self, const char *method)
{
	return core_ring_usable(&self->memory, "Channel", method);
}

static bool may_push(void *object, const char *method)
{
	struct channel *self = object;
	const char *reason;

	if (!core_channel_usable(self, method))
		return false;
	if (self->closed)
		reason = "the channel is closed";
	else if (core_ring_stopped(&self->producer.ring))
		reason = "the consumer has stopped";
	else if (self->producer.broken)
		reason = "the consumer's counter was overwritten with an impossible value";
	else
		return true;
	return core_raise(core_error_closed, "%s: %s", method, reason);
}

static uint64_t push_records(void *self, const char *records, uint64_t count)
{
	return core_ring_push(&((struct channel *)self)->producer, records, count);
}

/* Runs without the GIL, so it leaves the computation of the room to core_ring_push(). */
static bool may_have_room(void *object)
{
	struct channel *self = object;

	return core_ring_moved(&self->producer) || core_ring_stopped(&self->producer.ring) ||
	       __atomic_load_n(&self->closed, __ATOMIC_RELAXED);
}

static PyObject *push(struct channel *self, const char *method, bool many, CORE_PARAMETERS)
{
	const struct core_pushing end = {.self = self,
					 .method = method,
					 .may_push = may_push,
					 .push = push_records,
					 .has_news = may_have_room,
					 .nbytes = self->producer.ring.record_nbytes,
					 .capacity = self->producer.ring.capacity,
					 .pushed = &self->producer.tail};

	return core_push(&end, many, CORE_ARGUMENTS);
}

struct draining {
	struct channel *channel;
	uint64_t popped; /* what drain() waits for */
};

/* Counters do not wrap. */
static bool is_drained(void *context)
{
	struct draining *wait = context;
	const struct core_ring *ring = &wait->channel->producer.ring;

	return core_ring_popped(ring) >= wait->popped || core_ring_stopped(ring);
}

static bool may_drain(void *context)
{
	struct draining *wait = context;

	return core_channel_usable(wait->channel, "Channel.drain");
}

static PyObject *channel_drain(struct channel *self, CORE_PARAMETERS)
{
	static const char *const names[] = {"timeout", NULL};
	static const char method[] = "Channel.drain";
	struct draining wait = {.channel = self, .popped = self->producer.tail};
	struct core_spin spin = {.look = is_drained,
				 .may_go_on = may_drain,
				 .context = &wait,
				 .looks = CORE_LOOKS_CACHED};
	enum core_spin_end end;
	uint64_t popped;
	PyObject *arg[1];

	if (!core_parse(method, CORE_ARGUMENTS, names, 0, arg) ||
	    !core_as_timeout(method, arg[0], &spin.timeout) || !core_channel_usable(self, method))
		return NULL;

	end = core_spin(&spin);
	if (end == CORE_SPIN_ERROR)
		return NULL;
	popped = core_ring_popped(&self->producer.ring);
	if (popped >= wait.popped)
		Py_RETURN_NONE;
	return PyErr_Format(end == CORE_SPIN_LATE ? core_error_timeout : core_error_closed,
			    "%s: of %llu records, %llu were taken%s", method,
			    (unsigned long long)wait.popped, (unsigned long long)popped,
			    end == CORE_SPIN_LATE ? " in time" : ", and the consumer has stopped");
}

static PyObject *channel_close(struct channel *self, void *Py_UNUSED(unused))
{
	if (!self->closed && core_ring_is_ours(&self->memory))
		core_ring_close(&self->producer.ring);
	if (self->memory.gpu)
		__atomic_store_n(&self->closed, true, __ATOMIC_RELAXED);
	Py_RETURN_NONE;
}

static PyObject *channel_room(struct channel *self, void *Py_UNUSED(unused))
{
	if (!core_channel_usable(self, "Channel.room"))
		return NULL;
	return PyLong_FromUnsignedLongLong(core_ring_room(&self->producer));
}

static PyObject *channel_pushed(struct channel *self, void *Py_UNUSED(unused))
{
	if (!core_channel_usable(self, "Channel.pushed"))
		return NULL;
	return PyLong_FromUnsignedLongLong(self->producer.tail);
}

static PyObject *channel_popped(struct channel *self, void *Py_UNUSED(unused))
{
	if (!core_channel_usable(self, "Channel.popped"))
		return NULL;
	return PyLong_FromUnsignedLongLong(core_ring_popped(&self->producer.ring));
}

static PyObject *channel_closed(struct channel *self, void *Py_UNUSED(unused))
{
	return PyBool_FromLong(!self->memory.gpu ||
			       __atomic_load_n(&self->closed, __ATOMIC_RELAXED));
}

CORE_METHOD_ALONE(channel_push, channel, push, "Channel.push", false)
CORE_METHOD_ALONE(channel_push_many, channel, push, "Channel.push_many", true)
CORE_METHOD_ALONE(channel_drain_alone, channel, channel_drain)
CORE_ALONE(channel_close, channel)
CORE_ALONE(channel_room, channel)
CORE_ALONE(channel_pushed, channel)

static int channel_init(struct channel *self, PyObject *args, PyObject *kwargs)
{
	static const struct core_ring_needs needs = {.gpu = CORE_RING_RECORDS,
						     .host = CORE_RING_HOST_NBYTES,
						     .gpu_record = 1,
						     .capacity = PY_SSIZE_T_MAX};
	struct core_ring *ring = &self->producer.ring;
	struct gdr_slots records;
	struct mapping *gpu;

	if (!core_ring_hold(&self->memory, "Channel", args, kwargs, &needs, &records, NULL))
		return -1;
	gpu = self->memory.gpu;
	core_ring_place(ring, gpu->type, gpu->address, self->memory.host->address,
			records.record_nbytes, records.capacity);
	core_ring_begin(ring, gpu->address, self->memory.gpu_ptr, self->memory.host_ptr);
	return 0;
}

static int channel_clear(struct channel *self)
{
	core_ring_let_go(&self->memory);
	return 0;
}

CORE_TRAVERSE(channel, Py_VISIT(self->memory.gpu); Py_VISIT(self->memory.host))
CORE_DEALLOC(channel)

static PyMethodDef channel_methods[] = {
	{"push", CORE_FASTCALL(channel_push),
	 "push(record, timeout=None)\n--\n\n"
	 "Push one record: a contiguous buffer of `record_nbytes` bytes.\n\n"
	 "It is on its way to the GPU when this returns. While the ring is full, this waits up to\n"
	 "`timeout` seconds; meanwhile other Python threads run and signals are handled.\n"
	 "Raises ValueError, Timeout, Closed (also if the consumer has stopped), Forked."},
	{"push_many", CORE_FASTCALL(channel_push_many),
	 "push_many(records, timeout=None)\n--\n\n"
	 "Push the records of a contiguous buffer in order, like push().\n\n"
	 "They are published in batches. If this raises Timeout, Closed or the exception of a\n"
	 "signal handler, the first ones may have been pushed: see `pushed`."},
	{"drain", CORE_FASTCALL(channel_drain_alone),
	 "drain(timeout=None)\n--\n\n"
	 "Wait until the consumer has taken all records pushed before this call.\n\n"
	 "May be called after close(). Raises Timeout, Closed (the consumer has stopped)."},
	{"close", (PyCFunction)channel_close_alone, METH_NOARGS,
	 "close()\n--\n\n"
	 "Tell the consumer that no more records follow. May be called again.\n\n"
	 "Records in the ring can still be taken. Pushes that wait for room raise Closed. The\n"
	 "memory is freed with the Channel and its readers: keep them until the kernel\n"
	 "that reads it has ended."},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef channel_getset[] = {
	{"room", (getter)channel_room_alone, NULL,
	 "How many records can be pushed without waiting.", NULL},
	{"pushed", (getter)channel_pushed_alone, NULL, "How many records were ever pushed.", NULL},
	{"popped", (getter)channel_popped, NULL, "How many records the consumer has taken.", NULL},
	{"closed", (getter)channel_closed, NULL, "Whether close() has been called.", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef channel_members[] = {
	{"record_nbytes", T_ULONGLONG, offsetof(struct channel, producer.ring.record_nbytes),
	 READONLY, "Bytes of a record."},
	{"capacity", T_ULONGLONG, offsetof(struct channel, producer.ring.capacity), READONLY,
	 "How many records the ring holds."},
	{NULL, 0, 0, 0, NULL},
};

static PyType_Slot channel_slots[] = {
	{Py_tp_doc, "Channel(memory, host, record_nbytes, capacity)\n--\n\n"
		    "The producer's end of a ring of records."},
	{Py_tp_init, channel_init},
	CORE_COLLECTED(channel),
	{Py_tp_methods, channel_methods},
	{Py_tp_getset, channel_getset},
	{Py_tp_members, channel_members},
	{0, NULL},
};

CORE_TYPE(channel, "Channel", Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC);
