/* SPDX-License-Identifier: MIT */
/* gdrpy._core._mapping.Channel: the producer's end of a ring of records for a GPU. */
#include "channel.h"

#include "spin.h"

#include <structmember.h>

/* The most that push_many() stores before it publishes the records. */
#define BATCH_NBYTES (16 * 1024)
/* The time after which it lets other Python threads run and handles signals. */
#define LOCKED_NS 1000000

PyTypeObject *core_channel_type_object;

bool core_channel_usable(struct channel *self, const char *method)
{
	if (!self->memory)
		return core_raise(PyExc_TypeError, "%s: the Channel was never initialized", method);
	if (self->memory->generation != core_fork_generation)
		return core_raise(
			core_error_forked,
			"%s: this channel belongs to the parent process; a forked child must "
			"create one",
			method);
	return true;
}

/* Whether records may be pushed; false with an exception set. */
static bool may_push(struct channel *self, const char *method)
{
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

struct channel_wait {
	struct channel *channel;
	const char *method;
	uint64_t popped; /* what drain() waits for */
};

static bool may_go_on(void *context)
{
	struct channel_wait *wait = context;

	return may_push(wait->channel, wait->method);
}

/* Runs without the GIL, so it leaves the computation of the room to core_ring_push(). */
static bool may_have_room(void *context)
{
	struct channel *self = ((struct channel_wait *)context)->channel;

	return core_ring_moved(&self->producer) || core_ring_stopped(&self->producer.ring) ||
	       __atomic_load_n(&self->closed, __ATOMIC_RELAXED);
}

static bool wait_for_room(struct channel *self, const char *method, int64_t deadline)
{
	struct channel_wait wait = {.channel = self, .method = method};
	struct core_spin spin = {.look = may_have_room,
				 .may_go_on = may_go_on,
				 .context = &wait,
				 .looks = CORE_LOOKS_CACHED,
				 .timeout = core_time_left(deadline)};
	enum core_spin_end end = core_spin(&spin);

	if (end == CORE_SPIN_LATE)
		PyErr_Format(core_error_timeout,
			     "%s: the ring of %llu records is full, and nothing was taken in time; "
			     "%llu records have been pushed so far",
			     method, (unsigned long long)self->producer.ring.capacity,
			     (unsigned long long)self->producer.tail);
	return end == CORE_SPIN_CAME;
}

static bool let_others_run(int64_t *since)
{
	if (core_now_ns() - *since < LOCKED_NS)
		return true;
	PyEval_RestoreThread(PyEval_SaveThread());
	*since = core_now_ns();
	return !PyErr_CheckSignals();
}

static bool push_all(struct channel *self, const char *method, const char *records, uint64_t count,
		     int64_t timeout)
{
	uint64_t nbytes = self->producer.ring.record_nbytes;
	uint64_t batch = nbytes < BATCH_NBYTES ? BATCH_NBYTES / nbytes : 1;
	uint64_t pushed = core_ring_push(&self->producer, records, count < batch ? count : batch);
	int64_t deadline, since;

	if (pushed == count)
		return true;

	deadline = core_deadline(timeout);
	since = core_now_ns();
	do {
		records += pushed * nbytes;
		count -= pushed;
		if ((!pushed && !wait_for_room(self, method, deadline)) ||
		    !let_others_run(&since) || !may_push(self, method))
			return false;
		pushed = core_ring_push(&self->producer, records, count < batch ? count : batch);
	} while (pushed < count);
	return true;
}

static PyObject *push(struct channel *self, const char *method, bool many, CORE_PARAMETERS)
{
	static const char *const names[][3] = {{"record", "timeout", NULL},
					       {"records", "timeout", NULL}};
	bool pushed = false;
	PyObject *arg[2];
	Py_ssize_t nbytes;
	int64_t timeout;
	Py_buffer data;

	if (!core_parse(method, CORE_ARGUMENTS, names[many], 1, arg) ||
	    !core_as_timeout(method, arg[1], &timeout) || !may_push(self, method) ||
	    !core_get_view(method, names[many][0], arg[0], 0, &data))
		return NULL;

	nbytes = (Py_ssize_t)self->producer.ring.record_nbytes;
	if (many ? data.len % nbytes != 0 : data.len != nbytes)
		PyErr_Format(PyExc_ValueError,
			     many ? "%s: a record has %zd bytes, and %zd is not a multiple"
				  : "%s: a record has %zd bytes, but %zd were given",
			     method, nbytes, data.len);
	else if (may_push(self, method)) /* getting the buffer may have run Python code */
		pushed = push_all(self, method, data.buf, (uint64_t)(data.len / nbytes), timeout);
	PyBuffer_Release(&data);
	return pushed ? Py_NewRef(Py_None) : NULL;
}

/* Counters do not wrap. */
static bool is_drained(void *context)
{
	struct channel_wait *wait = context;
	const struct core_ring *ring = &wait->channel->producer.ring;

	return core_ring_popped(ring) >= wait->popped || core_ring_stopped(ring);
}

static bool may_drain(void *context)
{
	struct channel_wait *wait = context;

	return core_channel_usable(wait->channel, wait->method);
}

static PyObject *channel_drain(struct channel *self, CORE_PARAMETERS)
{
	static const char *const names[] = {"timeout", NULL};
	static const char method[] = "Channel.drain";
	struct channel_wait wait = {
		.channel = self, .method = method, .popped = self->producer.tail};
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
	if (self->memory && !self->closed) {
		if (self->memory->generation == core_fork_generation)
			core_ring_close(&self->producer.ring);
		__atomic_store_n(&self->closed, true, __ATOMIC_RELAXED);
	}
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
	return PyBool_FromLong(!self->memory || __atomic_load_n(&self->closed, __ATOMIC_RELAXED));
}

CORE_METHOD_ALONE(channel_push, channel, push, "Channel.push", false)
CORE_METHOD_ALONE(channel_push_many, channel, push, "Channel.push_many", true)
CORE_METHOD_ALONE(channel_drain_alone, channel, channel_drain)
CORE_ALONE(channel_close, channel)
CORE_ALONE(channel_room, channel)
CORE_ALONE(channel_pushed, channel)

static int channel_init(struct channel *self, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"memory", "host", "record_nbytes", "capacity", NULL};
	unsigned long long memory_ptr, host_ptr;
	struct mapping *memory, *host;
	PyTypeObject *type = core_mapping_type_object;
	Py_ssize_t nbytes, capacity;
	struct core_ring *ring = &self->producer.ring;

	if (!core_init_once("Channel", self->memory) ||
	    !PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!nn:Channel", names, type, &memory, type,
					 &host, &nbytes, &capacity) ||
	    !core_mapping_writable(memory, "Channel") || !core_mapping_writable(host, "Channel"))
		return -1;
	if (nbytes <= 0 || nbytes % CORE_RING_RECORD_UNIT || capacity <= 0 ||
	    capacity & (capacity - 1) || host->nbytes < CORE_RING_HOST_NBYTES ||
	    memory->nbytes < CORE_RING_RECORDS ||
	    (memory->nbytes - CORE_RING_RECORDS) / nbytes < capacity) {
		PyErr_SetString(PyExc_ValueError, "Channel: record_nbytes, capacity or the "
						  "mappings' size is out of range");
		return -1;
	}
	memory_ptr = PyLong_AsUnsignedLongLong(memory->ptr);
	if (PyErr_Occurred())
		return -1;
	host_ptr = PyLong_AsUnsignedLongLong(host->ptr);
	if (PyErr_Occurred())
		return -1;

	/* close() of a mapping must not unmap it */
	if (!core_mapping_hold(memory, "Channel", CORE_ONE_VIEW))
		return -1;
	if (!core_mapping_hold(host, "Channel", CORE_ONE_VIEW)) {
		core_mapping_let_go(memory, CORE_ONE_VIEW);
		return -1;
	}
	core_ring_place(ring, memory->type, memory->address, host->address, (uint64_t)nbytes,
			(uint64_t)capacity);
	core_ring_begin(ring, memory->address, memory_ptr, host_ptr);
	self->memory = (struct mapping *)Py_NewRef((PyObject *)memory);
	self->host = (struct mapping *)Py_NewRef((PyObject *)host);
	return 0;
}

static void let_go(struct mapping **mapping)
{
	if (*mapping)
		core_mapping_let_go(*mapping, CORE_ONE_VIEW);
	Py_CLEAR(*mapping);
}

static int channel_clear(struct channel *self)
{
	let_go(&self->memory);
	let_go(&self->host);
	return 0;
}

CORE_TRAVERSE(channel, Py_VISIT(self->memory); Py_VISIT(self->host))
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
