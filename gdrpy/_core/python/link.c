/* SPDX-License-Identifier: MIT */
/*
 * gdrpy._core._mapping.Link and Answer: requests in a channel, and answers in slots of host memory.
 *
 * The answer to request i lies in slot i % capacity. A request is pushed only when the one before
 * it in its slot has been answered and that answer taken, so kernels need no counter to find room.
 */
#include "channel.h"
#include "channel/inbox.h"

#include <structmember.h>

struct link {
	PyObject_HEAD struct channel *channel; /* NULL until it is initialized */
	struct mapping *host;
	struct gdr_slots answers;
	PyObject ***claims; /* by slot: where the last answer goes; NULL once it is there */
	uint64_t record_nbytes;
};

struct answer {
	PyObject_HEAD struct link *link; /* NULL until its request is pushed */
	uint64_t number;
	PyObject *record; /* NULL until it is taken */
	bool begun;	  /* whether __init__() has run, or runs */
};

/* The claim to an answer that is to be dropped when it comes. */
static PyObject *nowhere;
#define UNCLAIMED (&nowhere)

PyTypeObject *core_link_type_object;

_Static_assert(sizeof(struct gdr_link) <= CORE_RING_TAIL, "the words follow the descriptor");

static PyObject ***claim_of(struct link *self, uint64_t number)
{
	return &self->claims[number & (self->answers.capacity - 1)];
}

static bool link_usable(struct link *self, const char *method)
{
	if (!self->channel)
		return core_raise(PyExc_TypeError, "%s: the Link was never initialized", method);
	return core_ring_usable(&self->channel->memory, "Link", method);
}

static bool has_arrived(struct link *self, uint64_t number)
{
	return gdr_slot_get(&self->answers, number, NULL);
}

/* Move an answer that has arrived from its slot to where it goes; false with an exception set. */
static bool move_answer(struct link *self, uint64_t number)
{
	PyObject ***claim = claim_of(self, number), *record;

	if (*claim != UNCLAIMED) {
		record = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)self->answers.record_nbytes);
		if (!record)
			return false;
		gdr_slot_get(&self->answers, number, PyBytes_AsString(record));
		__atomic_store_n(*claim, record, __ATOMIC_RELAXED);
	}
	*claim = NULL;
	return true;
}

/* Whether a request may have its slot: the answer to the one before has come, or was moved. */
static bool is_vacant(struct link *self, uint64_t number)
{
	return !__atomic_load_n(claim_of(self, number), __ATOMIC_RELAXED) ||
	       has_arrived(self, number - self->answers.capacity);
}

/* Move the answer from a vacant slot, if there is one; false with an exception set. */
static bool vacate(struct link *self, uint64_t number)
{
	return !*claim_of(self, number) || move_answer(self, number - self->answers.capacity);
}

struct waiting {
	struct link *link;
	const char *method;
	uint64_t number;
	PyObject *const *record; /* where the answer goes */
};

/* Of the request that is next by now: other threads push, too. */
static bool can_push(void *context)
{
	struct waiting *wait = context;
	struct channel *channel = wait->link->channel;
	const struct core_ring *ring = &channel->producer.ring;
	uint64_t number = __atomic_load_n(&channel->producer.tail, __ATOMIC_RELAXED);

	return (number - core_ring_popped(ring) < ring->capacity &&
		is_vacant(wait->link, number)) ||
	       core_ring_stopped(ring) || __atomic_load_n(&channel->closed, __ATOMIC_RELAXED);
}

static bool may_push(void *context)
{
	struct waiting *wait = context;

	if (!link_usable(wait->link, wait->method))
		return false;
	if (wait->link->channel->closed)
		return core_raise(core_error_closed, "%s: the link is closed", wait->method);
	return core_channel_may_push(wait->link->channel, wait->method);
}

/* Push a request when there is room, and return its number; -1 with an exception set. */
static int64_t push_request(struct link *self, const char *method, const char *record,
			    int64_t deadline, PyObject **claim)
{
	struct core_ring_producer *producer = &self->channel->producer;
	struct waiting wait = {.link = self, .method = method};
	struct core_spin spin = {.look = can_push,
				 .may_go_on = may_push,
				 .context = &wait,
				 .looks = CORE_LOOKS_CACHED};

	for (;;) {
		if (!may_push(&wait))
			return -1;
		wait.number = producer->tail;
		if (is_vacant(self, wait.number)) {
			if (!vacate(self, wait.number))
				return -1;
			if (core_ring_push(producer, record, 1))
				break;
		}
		spin.timeout = core_time_left(deadline);
		switch (core_spin(&spin)) {
		case CORE_SPIN_CAME:
			continue;
		case CORE_SPIN_LATE:
			PyErr_Format(core_error_timeout,
				     "%s: the link holds %llu requests, and the first of them was "
				     "not taken or not answered in time",
				     method, (unsigned long long)self->answers.capacity);
			return -1;
		case CORE_SPIN_ERROR:
			return -1;
		}
	}
	*claim_of(self, wait.number) = claim;
	return (int64_t)wait.number;
}

/* Push the request of Python arguments; -1 with an exception set. */
static int64_t submit(struct link *self, const char *method, PyObject *object, int64_t deadline,
		      PyObject **claim)
{
	Py_ssize_t nbytes;
	struct core_bytes record;
	int64_t number = -1;

	if (!link_usable(self, method) || !core_get_bytes(method, "record", object, false, &record))
		return -1;
	nbytes = (Py_ssize_t)self->record_nbytes;
	if (record.nbytes != nbytes)
		PyErr_Format(PyExc_ValueError, "%s: a record has %zd bytes, but %zd were given",
			     method, nbytes, record.nbytes);
	else
		number = push_request(self, method, record.data, deadline, claim);
	core_release_bytes(&record);
	return number;
}

static bool has_answer(void *context)
{
	struct waiting *wait = context;

	return __atomic_load_n(wait->record, __ATOMIC_RELAXED) ||
	       has_arrived(wait->link, wait->number) ||
	       core_ring_stopped(&wait->link->channel->producer.ring);
}

static bool may_wait(void *context)
{
	struct waiting *wait = context;

	return link_usable(wait->link, wait->method);
}

/* Wait until the answer to a request is at *record, where it goes; false with an exception set. */
static bool wait_for_answer(struct link *self, const char *method, uint64_t number,
			    int64_t deadline, PyObject *const *record)
{
	struct waiting wait = {self, method, number, record};
	struct core_spin spin = {.look = has_answer,
				 .may_go_on = may_wait,
				 .context = &wait,
				 .looks = CORE_LOOKS_CACHED,
				 .timeout = core_time_left(deadline)};
	enum core_spin_end end = core_spin(&spin);

	if (end == CORE_SPIN_ERROR)
		return false;
	if (*record)
		return true;
	if (has_arrived(self, number)) /* also what came just before the kernel stopped */
		return move_answer(self, number);
	return core_raise(end == CORE_SPIN_LATE ? core_error_timeout : core_error_closed,
			  "%s: request %llu was not answered%s", method, (unsigned long long)number,
			  end == CORE_SPIN_LATE ? " in time" : ", and the kernel has stopped");
}

static PyObject *link_call(struct link *self, CORE_PARAMETERS)
{
	static const char *const names[] = {"record", "timeout", NULL};
	static const char method[] = "Link.call";
	int64_t timeout, deadline, number;
	PyObject *arg[2], *record = NULL;

	if (!core_parse(method, CORE_ARGUMENTS, names, 1, arg) ||
	    !core_as_timeout(method, arg[1], &timeout))
		return NULL;
	deadline = core_deadline(timeout);
	number = submit(self, method, arg[0], deadline, &record);
	if (number < 0 || wait_for_answer(self, method, (uint64_t)number, deadline, &record))
		return record;
	if (record) /* moved here meanwhile */
		Py_CLEAR(record);
	else
		*claim_of(self, (uint64_t)number) = UNCLAIMED;
	return NULL;
}

static PyObject *link_close(struct link *self, void *Py_UNUSED(unused))
{
	if (self->channel)
		core_channel_end(self->channel);
	Py_RETURN_NONE;
}

static PyObject *link_closed(struct link *self, void *Py_UNUSED(unused))
{
	return PyBool_FromLong(!self->channel ||
			       __atomic_load_n(&self->channel->closed, __ATOMIC_RELAXED));
}

/* What a kernel does, for its stand-in. */
static PyObject *link_answer(struct link *self, CORE_PARAMETERS)
{
	static const char *const names[] = {"number", "record", NULL};
	static const char method[] = "LinkServer.answer";
	const char *refusal = NULL;
	const struct core_ring *ring;
	struct core_bytes record;
	PyObject *arg[2];
	uint64_t number;

	if (!core_parse(method, CORE_ARGUMENTS, names, 2, arg) ||
	    !core_as_word(method, arg[0], 8, &number) || !link_usable(self, method) ||
	    !core_get_bytes(method, "record", arg[1], false, &record))
		return NULL;
	ring = &self->channel->producer.ring;
	if ((uint64_t)record.nbytes != self->answers.record_nbytes)
		PyErr_Format(PyExc_ValueError, "%s: an answer has %llu bytes, but %zd were given",
			     method, (unsigned long long)self->answers.record_nbytes,
			     record.nbytes);
	else if (number >= core_ring_popped(ring))
		refusal = "has not been taken";
	else if (core_ring_pushed(ring) - number > ring->capacity || has_arrived(self, number))
		refusal = "has been answered before";
	else
		gdr_slot_put(&self->answers, number, record.data);
	core_release_bytes(&record);
	if (refusal)
		PyErr_Format(PyExc_ValueError, "%s: request %llu %s", method,
			     (unsigned long long)number, refusal);
	return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

CORE_METHOD_ALONE(link_call_alone, link, link_call)
CORE_METHOD_ALONE(link_answer_alone, link, link_answer)
CORE_ALONE(link_close, link)

static int link_init(struct link *self, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"channel", "host", "answer_nbytes", NULL};
	struct gdr_slots *answers = &self->answers, on_gpu;
	struct channel *channel;
	struct mapping *host;
	uint64_t host_ptr;
	Py_ssize_t nbytes;

	if (!core_init_once("Link", self->channel) ||
	    !PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!n:Link", names,
					 core_channel_type_object, &channel,
					 core_mapping_type_object, &host, &nbytes) ||
	    !core_channel_usable(channel, "Link") || !core_mapping_writable(host, "Link"))
		return -1;
	answers->capacity = channel->producer.ring.capacity;
	if (nbytes <= 0 || nbytes % CORE_RING_RECORD_UNIT || nbytes > CORE_RING_RECORD_MAX ||
	    answers->capacity > CORE_SLOTS_MAX ||
	    (uint64_t)(host->nbytes / (CORE_SLOT_FACTOR * nbytes)) < answers->capacity) {
		PyErr_SetString(PyExc_ValueError, "Link: answer_nbytes, the channel's capacity or "
						  "the mapping's size is out of range");
		return -1;
	}
	host_ptr = PyLong_AsUnsignedLongLong(host->ptr);
	if (PyErr_Occurred())
		return -1;
	PyMem_Free(self->claims); /* of an attempt that failed */
	self->claims = PyMem_Calloc(answers->capacity, sizeof(*self->claims));
	if (!self->claims) {
		PyErr_NoMemory();
		return -1;
	}
	if (!core_mapping_hold(host, "Link", CORE_ONE_VIEW))
		return -1;
	self->host = (struct mapping *)Py_NewRef((PyObject *)host);
	self->channel = (struct channel *)Py_NewRef((PyObject *)channel);
	self->record_nbytes = channel->producer.ring.record_nbytes;
	answers->record_nbytes = (uint64_t)nbytes;
	answers->address = (uintptr_t)host->address;
	core_slots_clear(answers);
	on_gpu = *answers;
	on_gpu.address = host_ptr;
	core_copy_to(channel->memory.gpu->type,
		     channel->memory.gpu->address + offsetof(struct gdr_link, answers), &on_gpu,
		     sizeof(on_gpu));
	core_store_fence();
	return 0;
}

static int link_clear(struct link *self)
{
	if (self->host)
		core_mapping_let_go(self->host, CORE_ONE_VIEW);
	Py_CLEAR(self->host);
	Py_CLEAR(self->channel);
	return 0;
}

static void link_dealloc(struct link *self)
{
	PyObject_GC_UnTrack(self);
	link_clear(self);
	PyMem_Free(self->claims);
	core_free_object(self);
}

CORE_TRAVERSE(link, Py_VISIT(self->host); Py_VISIT(self->channel))

static PyMethodDef link_methods[] = {
	{"call", CORE_FASTCALL(link_call_alone),
	 "call(record, timeout=None)\n--\n\n"
	 "Push a request, a contiguous buffer of `record_nbytes` bytes, and wait for its answer,\n"
	 "which is returned as bytes.\n\n"
	 "While it waits, other Python threads run and signals are handled. Threads may call at\n"
	 "the same time. `timeout`, in seconds, is that of the whole call; the kernel still gets\n"
	 "a request that was pushed.\n"
	 "Raises ValueError, Timeout, Closed (also if the kernel has stopped), Forked."},
	{"_answer", CORE_FASTCALL(link_answer_alone),
	 "_answer(number, record)\n--\n\nLinkServer.answer()."},
	{"close", (PyCFunction)link_close_alone, METH_NOARGS,
	 "close()\n--\n\n"
	 "Tell the kernel that no more requests follow. May be called again.\n\n"
	 "Requests in the ring can still be taken, and answered. The memory is freed with the\n"
	 "Link, its answers and its servers: keep them until the kernel has ended."},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef link_getset[] = {
	{"closed", (getter)link_closed, NULL, "Whether close() has been called.", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef link_members[] = {
	{"record_nbytes", T_ULONGLONG, offsetof(struct link, record_nbytes), READONLY,
	 "Bytes of a request."},
	{"answer_nbytes", T_ULONGLONG, offsetof(struct link, answers.record_nbytes), READONLY,
	 "Bytes of an answer."},
	{"capacity", T_ULONGLONG, offsetof(struct link, answers.capacity), READONLY,
	 "How many requests may be under way."},
	{NULL, 0, 0, 0, NULL},
};

static PyType_Slot link_slots[] = {
	{Py_tp_doc,
	 "Link(channel, host, answer_nbytes)\n--\n\nRequests to a kernel, and its answers."},
	{Py_tp_init, link_init},
	{Py_tp_dealloc, link_dealloc},
	{Py_tp_traverse, link_traverse},
	{Py_tp_clear, link_clear},
	{Py_tp_methods, link_methods},
	{Py_tp_getset, link_getset},
	{Py_tp_members, link_members},
	{0, NULL},
};

CORE_TYPE(link, "Link", Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC);

static PyObject *answer_result(struct answer *self, CORE_PARAMETERS)
{
	static const char *const names[] = {"timeout", NULL};
	static const char method[] = "Answer.result";
	PyObject *arg[1];
	int64_t timeout;

	if (!core_parse(method, CORE_ARGUMENTS, names, 0, arg) ||
	    !core_as_timeout(method, arg[0], &timeout))
		return NULL;
	if (!self->record && (!link_usable(self->link, method) ||
			      !wait_for_answer(self->link, method, self->number,
					       core_deadline(timeout), &self->record)))
		return NULL;
	return Py_NewRef(self->record);
}

static PyObject *answer_done(struct answer *self, void *Py_UNUSED(unused))
{
	struct waiting wait = {self->link, "Answer.done", self->number, &self->record};

	if (!self->record && !may_wait(&wait))
		return NULL;
	return PyBool_FromLong(has_answer(&wait));
}

/* By the link's lock, which also orders the claims. */
static PyObject *answer_result_alone(struct answer *self, CORE_PARAMETERS)
{
	PyObject *result = NULL;

	if (!self->link)
		PyErr_SetString(PyExc_TypeError, "Answer.result: the Answer was never initialized");
	else {
		CORE_BEGIN_ALONE(self->link);
		result = answer_result(self, CORE_ARGUMENTS);
		CORE_END_ALONE();
	}
	return result;
}

static PyObject *answer_done_alone(struct answer *self, void *unused)
{
	PyObject *result = NULL;

	if (!self->link)
		PyErr_SetString(PyExc_TypeError, "Answer.done: the Answer was never initialized");
	else {
		CORE_BEGIN_ALONE(self->link);
		result = answer_done(self, unused);
		CORE_END_ALONE();
	}
	return result;
}

static int answer_init(struct answer *self, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"link", "record", "timeout", NULL};
	PyObject *record, *timeout_object = NULL;
	int64_t timeout, number;
	struct link *link;

	if (!core_init_once("Answer", self->begun))
		return -1;
	self->begun = true; /* now, as another thread may call it while this one waits */
	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O|O:Answer", names, core_link_type_object,
					 &link, &record, &timeout_object) ||
	    !core_as_timeout("Link.submit", timeout_object, &timeout))
		return -1;
	CORE_BEGIN_ALONE(link);
	number = submit(link, "Link.submit", record, core_deadline(timeout), &self->record);
	if (number >= 0) {
		self->number = (uint64_t)number;
		self->link = (struct link *)Py_NewRef((PyObject *)link);
	}
	CORE_END_ALONE();
	return number < 0 ? -1 : 0;
}

static int answer_clear(struct answer *self)
{
	struct link *link = self->link;

	if (link) {
		CORE_BEGIN_ALONE(link);
		if (link->claims && *claim_of(link, self->number) == &self->record)
			*claim_of(link, self->number) = UNCLAIMED;
		CORE_END_ALONE();
	}
	Py_CLEAR(self->link);
	Py_CLEAR(self->record);
	return 0;
}

CORE_TRAVERSE(answer, Py_VISIT(self->link); Py_VISIT(self->record))
CORE_DEALLOC(answer)

static PyMethodDef answer_methods[] = {
	{"result", CORE_FASTCALL(answer_result_alone),
	 "result(timeout=None)\n--\n\n"
	 "Wait for the answer, and return it as bytes. May be called again.\n\n"
	 "While it waits, other Python threads run and signals are handled.\n"
	 "Raises Timeout, Closed (the kernel has stopped without it), Forked."},
	{"done", (PyCFunction)answer_done_alone, METH_NOARGS,
	 "done()\n--\n\n"
	 "Whether result() returns or raises without waiting: the answer is there, or the kernel\n"
	 "has stopped."},
	{NULL, NULL, 0, NULL},
};

static PyMemberDef answer_members[] = {
	{"link", T_OBJECT_EX, offsetof(struct answer, link), READONLY,
	 "The link of its request, which it keeps alive."},
	{"number", T_ULONGLONG, offsetof(struct answer, number), READONLY,
	 "The number of its request, counted from the link's first."},
	{NULL, 0, 0, 0, NULL},
};

static PyType_Slot answer_slots[] = {
	{Py_tp_doc, "Answer(link, record, timeout=None)\n--\n\nWhat a request will be answered."},
	{Py_tp_init, answer_init},
	CORE_COLLECTED(answer),
	{Py_tp_methods, answer_methods},
	{Py_tp_members, answer_members},
	{0, NULL},
};

CORE_TYPE(answer, "Answer", Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC);
