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
	else if (self->state)
		return core_ring_refuse(&self->memory, method, self->state);
	else if (core_ring_stopped(&self->producer.ring))
		reason = "the consumer has stopped";
	else if (self->producer.broken)
		reason = self->memory.end == CORE_BOTH_ENDS
				 ? "the consumer's counter was overwritten with an impossible value"
				 : "a counter was overwritten with an impossible value";
	else
		return true;
	return core_raise(core_error_closed, "%s: %s", method, reason);
}

static uint64_t push_records(void *self, const char *records, uint64_t count)
{
	return core_ring_push(&((struct channel *)self)->producer, records, count);
}

/* Whether no push succeeds any more; runs without the GIL. */
static bool is_over(const struct channel *self)
{
	return core_ring_stopped(&self->producer.ring) ||
	       __atomic_load_n(&self->closed, __ATOMIC_RELAXED) ||
	       __atomic_load_n(&self->state, __ATOMIC_RELAXED);
}

/* Runs without the GIL, so it leaves the computation of the room to core_ring_push(). */
static bool may_have_room(void *object)
{
	struct channel *self = object;

	return core_ring_moved(&self->producer) || is_over(self);
}

/* The same with other producers, of whom each pushes in its turn. */
static uint64_t push_in_turn(void *object, const char *records, uint64_t count)
{
	struct channel *self = object;

	return core_turns_push(&self->turns, &self->producer, records, count);
}

static bool may_have_turn(void *object)
{
	struct channel *self = object;

	return core_turns_may_push(&self->turns, &self->producer.ring) || is_over(self);
}

static bool is_held_up(void *object)
{
	struct channel *self = object;

	return self->turns.holder && core_turns_taken(&self->turns);
}

static PyObject *push(struct channel *self, const char *method, bool many, CORE_PARAMETERS)
{
	const struct core_pushing end = {.self = self,
					 .method = method,
					 .may_push = may_push,
					 .push = self->push,
					 .has_news = self->may_push,
					 .is_held_up = is_held_up,
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

	if (!core_channel_usable(wait->channel, "Channel.drain"))
		return false;
	return !wait->channel->state ||
	       core_ring_refuse(&wait->channel->memory, "Channel.drain", wait->channel->state);
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
	if (!self->closed && core_ring_is_ours(&self->memory)) {
		if (self->memory.end == CORE_BOTH_ENDS)
			core_ring_set_closed(&self->producer.ring, true);
		else if (self->memory.end == CORE_CPU_END)
			core_ring_store(&self->memory, CORE_RING_CLOSER, self->memory.number);
	}
	if (self->memory.gpu)
		__atomic_store_n(&self->closed, true, __ATOMIC_RELAXED);
	Py_RETURN_NONE;
}

/* Of a ring of several producers: as of now, at most the capacity. */
static uint64_t common_room(const struct channel *self)
{
	const struct core_ring *ring = &self->producer.ring;
	uint64_t held = core_turns_pushed(&self->turns, ring) - core_ring_popped(ring);

	return held < ring->capacity ? ring->capacity - held : 0;
}

static uint64_t room_of(struct channel *self)
{
	return self->turns.holder ? common_room(self) : core_ring_room(&self->producer);
}

static PyObject *channel_room(struct channel *self, void *Py_UNUSED(unused))
{
	if (!core_channel_usable(self, "Channel.room"))
		return NULL;
	return PyLong_FromUnsignedLongLong(room_of(self));
}

static PyObject *channel_pushed(struct channel *self, void *Py_UNUSED(unused))
{
	if (!core_channel_usable(self, "Channel.pushed"))
		return NULL;
	return PyLong_FromUnsignedLongLong(
		self->turns.holder ? core_turns_pushed(&self->turns, &self->producer.ring)
				   : self->producer.tail);
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

struct awaiting_room {
	struct channel *channel;
	uint64_t count;
};

static bool has_room(void *context)
{
	struct awaiting_room *wait = context;
	struct channel *self = wait->channel;
	const struct core_ring *ring = &self->producer.ring;
	uint64_t pushed = self->turns.holder
				  ? core_turns_pushed(&self->turns, ring)
				  : __atomic_load_n(&self->producer.tail, __ATOMIC_RELAXED);

	/* Impossible counters are left to the push. */
	return pushed - core_ring_popped(ring) > ring->capacity ||
	       ring->capacity - (pushed - core_ring_popped(ring)) >= wait->count || is_over(self);
}

static bool may_await_room(void *context)
{
	return may_push(((struct awaiting_room *)context)->channel, "Channel.push");
}

/* _await_room(count, timeout): whether there was room in time. */
static PyObject *channel_await_room(struct channel *self, CORE_PARAMETERS)
{
	static const char *const names[] = {"count", "timeout", NULL};
	static const char method[] = "Channel.push";
	struct awaiting_room wait = {.channel = self};
	struct core_spin spin = {.look = has_room,
				 .may_go_on = may_await_room,
				 .context = &wait,
				 .looks = CORE_LOOKS_CACHED};
	enum core_spin_end end;
	PyObject *arg[2];

	if (!core_parse(method, CORE_ARGUMENTS, names, 1, arg) ||
	    !core_as_word(method, arg[0], 8, &wait.count) ||
	    !core_as_timeout(method, arg[1], &spin.timeout) || !may_push(self, method))
		return NULL;
	end = core_spin(&spin);
	if (end == CORE_SPIN_ERROR || !may_push(self, method))
		return NULL;
	return PyBool_FromLong(end == CORE_SPIN_CAME);
}

static PyObject *channel_set_state(struct channel *self, PyObject *args)
{
	unsigned long long settled;
	enum core_ring_state state;

	if (!core_ring_told(&self->memory, args, &state, &settled))
		return NULL;
	__atomic_store_n(&self->state, state, __ATOMIC_RELAXED);
	Py_RETURN_NONE;
}

static PyObject *channel_awaited(struct channel *self, void *Py_UNUSED(unused))
{
	return PyBool_FromLong(self->memory.gpu &&
			       core_ring_popped(&self->producer.ring) < self->producer.tail);
}

static PyObject *channel_holder(struct channel *self, void *Py_UNUSED(unused))
{
	if (!core_ring_is_end(&self->memory, CORE_CPU_END))
		return NULL;
	return PyLong_FromUnsignedLongLong(core_turns_holder(&self->turns));
}

static PyObject *channel_end_turn(struct channel *self, PyObject *object)
{
	uint64_t number;

	if (!core_ring_is_end(&self->memory, CORE_CPU_END) ||
	    !core_as_word("_end_turn", object, 8, &number))
		return NULL;
	core_turns_free(&self->turns, number);
	Py_RETURN_NONE;
}

static PyObject *channel_closer(struct channel *self, void *Py_UNUSED(unused))
{
	if (!core_ring_is_end(&self->memory, CORE_KERNEL_END))
		return NULL;
	return PyLong_FromUnsignedLongLong(core_ring_load(&self->memory, CORE_RING_CLOSER));
}

static PyObject *channel_descriptor(struct channel *self, void *Py_UNUSED(unused))
{
	struct gdr_channel described;

	if (!core_ring_is_end(&self->memory, CORE_KERNEL_END))
		return NULL;
	described = core_ring_described(&self->producer.ring, self->memory.gpu_ptr,
					self->memory.host_ptr);
	return PyBytes_FromStringAndSize((const char *)&described, sizeof(described));
}

static PyObject *channel_end(struct channel *self, void *Py_UNUSED(unused))
{
	if (!core_ring_is_end(&self->memory, CORE_KERNEL_END))
		return NULL;
	core_ring_set_closed(&self->producer.ring, true);
	Py_RETURN_NONE;
}

static PyObject *channel_begin(struct channel *self, PyObject *object)
{
	const struct core_ring *ring = &self->producer.ring;
	uint64_t number, left;

	if (!core_ring_is_end(&self->memory, CORE_KERNEL_END) ||
	    !core_as_word("_begin", object, 8, &number))
		return NULL;
	left = core_ring_pushed(ring) - core_ring_popped(ring);
	if (left > ring->capacity)
		return PyErr_Format(core_error_closed,
				    "KernelEnd.wait: a counter of the channel was overwritten with "
				    "an impossible value: delete the channel");
	core_ring_set_stopped(ring, false);
	core_ring_set_closed(ring, !number);
	return PyBool_FromLong(left != 0);
}

CORE_METHOD_ALONE(channel_push, channel, push, "Channel.push", false)
CORE_METHOD_ALONE(channel_push_many, channel, push, "Channel.push_many", true)
CORE_METHOD_ALONE(channel_drain_alone, channel, channel_drain)
CORE_ALONE(channel_close, channel)
CORE_ALONE(channel_set_state, channel)
CORE_ALONE(channel_awaited, channel)
CORE_ALONE(channel_room, channel)
CORE_ALONE(channel_pushed, channel)
CORE_METHOD_ALONE(channel_await_room_alone, channel, channel_await_room)

static int channel_init(struct channel *self, PyObject *args, PyObject *kwargs)
{
	static const struct core_ring_needs needs = {.gpu = CORE_RING_RECORDS,
						     .host = CORE_RING_HOST_NBYTES,
						     .gpu_record = 1,
						     .capacity = PY_SSIZE_T_MAX};
	struct core_ring_memory *memory = &self->memory;
	struct core_ring *ring = &self->producer.ring;
	struct gdr_slots records;

	if (!core_ring_hold(memory, "Channel", args, kwargs, &needs, &records, NULL))
		return -1;
	core_ring_place(ring, memory->gpu->type, memory->gpu->address, memory->host->address,
			records.record_nbytes, records.capacity);
	self->push = memory->end == CORE_CPU_END ? push_in_turn : push_records;
	self->may_push = memory->end == CORE_CPU_END ? may_have_turn : may_have_room;
	if (memory->end == CORE_BOTH_ENDS)
		core_ring_begin(ring, memory->gpu->address, memory->gpu_ptr, memory->host_ptr);
	else if (memory->end == CORE_CPU_END) {
		core_turns_join(&self->turns, &self->producer, memory->host->address,
				memory->number);
		core_ring_store(memory, CORE_RING_CLOSER, 0);
	} else
		self->closed = true; /* it has no producer */
	return 0;
}

static int channel_clear(struct channel *self)
{
	core_ring_let_go(&self->memory);
	return 0;
}

CORE_TRAVERSE(channel, CORE_VISIT_RING(self->memory))
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
	{"_await_room", CORE_FASTCALL(channel_await_room_alone), "Whether there is room in time."},
	{"_set_state", (PyCFunction)channel_set_state_alone, METH_VARARGS,
	 "Note what is at the other end."},
	{"_end_turn", (PyCFunction)channel_end_turn, METH_O, "End the turn of a producer."},
	{"_descriptor", (PyCFunction)channel_descriptor, METH_NOARGS, "What kernels are given."},
	{"_begin", (PyCFunction)channel_begin, METH_O,
	 "Begin a kernel's run for a producer, or 0; whether records are left."},
	{"_leave", core_ring_leave, METH_NOARGS, "Have what pops or pushes raise Closed."},
	{"_end", (PyCFunction)channel_end, METH_NOARGS, "Tell the kernel that no records follow."},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef channel_getset[] = {
	{"room", (getter)channel_room_alone, NULL,
	 "How many records can be pushed without waiting.", NULL},
	{"pushed", (getter)channel_pushed_alone, NULL, "How many records were ever pushed.", NULL},
	{"popped", (getter)channel_popped, NULL, "How many records the consumer has taken.", NULL},
	{"closed", (getter)channel_closed, NULL, "Whether close() has been called.", NULL},
	{"_awaited", (getter)channel_awaited_alone, NULL, "Whether drain() waits now.", NULL},
	{"_holder", (getter)channel_holder, NULL, "The producer whose turn it is, or 0.", NULL},
	{"_closer", (getter)channel_closer, NULL, "The producer that closed it, or 0.", NULL},
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
