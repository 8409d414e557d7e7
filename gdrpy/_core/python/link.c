/* SPDX-License-Identifier: MIT */
/*
 * gdrpy._core._mapping.Link and Answer: requests in slots of GPU memory, and answers in slots of
 * host memory.
 *
 * Request i and its answer lie in slots i % capacity. A request is pushed only when the one before
 * it in its slot has been answered and that answer taken, so neither end needs a counter to find
 * room.
 */
#include "link.h"

#include "channel/inbox.h"

#include <structmember.h>

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

static PyObject ***claim_of(struct link *self, uint64_t number)
{
	return &self->claims[number & (self->end.link.answers.capacity - 1)];
}

bool core_link_usable(struct link *self, const char *method)
{
	return core_ring_usable(&self->memory, "Link", method);
}

static bool has_arrived(struct link *self, uint64_t number)
{
	return gdr_slot_get(&self->end.link.answers, number, NULL);
}

/* Move an answer that has arrived from its slot to where it goes; false with an exception set. */
static bool move_answer(struct link *self, uint64_t number)
{
	const struct gdr_slots *answers = &self->end.link.answers;
	PyObject ***claim = claim_of(self, number), *record;

	if (*claim != UNCLAIMED) {
		record = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)answers->record_nbytes);
		if (!record)
			return false;
		gdr_slot_get(answers, number, PyBytes_AsString(record));
		__atomic_store_n(*claim, record, __ATOMIC_RELAXED);
	}
	*claim = NULL;
	return true;
}

static bool is_lost(struct link *self, uint64_t number)
{
	return number < __atomic_load_n(&self->lost_below, __ATOMIC_RELAXED);
}

/*
 * Whether a request may have its slot: the answer to the one before has come, was moved, or never
 * will come.
 */
static bool is_vacant(struct link *self, uint64_t number)
{
	uint64_t before = number - self->end.link.answers.capacity;

	return !__atomic_load_n(claim_of(self, number), __ATOMIC_RELAXED) ||
	       has_arrived(self, before) || is_lost(self, before);
}

/* Whether the kernel's end has taken this end of a named link up. */
static bool is_accepted(const struct link *self)
{
	return core_ring_load(&self->memory, CORE_LINK_ACCEPTED) == self->memory.number;
}

static bool is_open(struct link *self)
{
	if (self->state == CORE_END_OPEN)
		return true;
	if (self->state != CORE_END_WAITING || !is_accepted(self))
		return false;
	__atomic_store_n(&self->state, CORE_END_OPEN, __ATOMIC_RELAXED);
	return true;
}

/* Move the answer from a vacant slot, if there is one; false with an exception set. */
static bool vacate(struct link *self, uint64_t number)
{
	uint64_t before = number - self->end.link.answers.capacity;

	if (!*claim_of(self, number))
		return true;
	if (has_arrived(self, before))
		return move_answer(self, before);
	*claim_of(self, number) = NULL; /* it is lost */
	return true;
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
	struct link *link = ((struct waiting *)context)->link;
	enum core_ring_state state = __atomic_load_n(&link->state, __ATOMIC_RELAXED);

	if (__atomic_load_n(&link->closed, __ATOMIC_RELAXED))
		return true;
	if (state == CORE_END_WAITING)
		return is_accepted(link);
	return is_vacant(link, __atomic_load_n(&link->end.pushed, __ATOMIC_RELAXED)) ||
	       core_requests_stopped(&link->end) || state;
}

static bool may_push(void *context)
{
	struct waiting *wait = context;
	struct link *link = wait->link;

	if (!core_link_usable(link, wait->method))
		return false;
	if (link->closed)
		return core_raise(core_error_closed, "%s: the link is closed", wait->method);
	if (link->state == CORE_END_OPEN)
		return !core_requests_stopped(&link->end) ||
		       core_raise(core_error_closed, "%s: the kernel has stopped", wait->method);
	return link->state == CORE_END_WAITING ||
	       core_ring_refuse(&link->memory, wait->method, link->state);
}

/*
 * Push a request when there is room, return its number, and leave what is left of the timeout; -1
 * with an exception set.
 */
static int64_t push_request(struct link *self, const char *method, const char *record,
			    int64_t *timeout, PyObject **claim)
{
	struct waiting wait = {.link = self, .method = method};
	struct core_spin spin = {.look = can_push,
				 .may_go_on = may_push,
				 .context = &wait,
				 .looks = CORE_LOOKS_CACHED,
				 .timeout = *timeout};
	uint64_t number;

	for (;;) {
		if (!may_push(&wait))
			return -1;
		number = self->end.pushed;
		if (is_open(self) && is_vacant(self, number))
			break;
		switch (core_spin(&spin)) {
		case CORE_SPIN_CAME:
			continue;
		case CORE_SPIN_LATE:
			PyErr_Format(core_error_timeout,
				     self->state == CORE_END_WAITING
					     ? "%s: no kernel's end took this end of the link up "
					       "in time: see KernelEnd.wait()"
					     : "%s: the link holds %llu requests, and the first of "
					       "them was "
					       "not taken or not answered in time",
				     method, (unsigned long long)self->end.link.requests.capacity);
			return -1;
		case CORE_SPIN_ERROR:
			return -1;
		}
	}
	if (!vacate(self, number))
		return -1;
	core_requests_push(&self->end, record);
	*claim_of(self, number) = claim;
	*timeout = spin.timeout;
	return (int64_t)number;
}

/* Push the request of Python arguments; -1 with an exception set. */
static int64_t submit(struct link *self, const char *method, PyObject *object, int64_t *timeout,
		      PyObject **claim)
{
	Py_ssize_t nbytes;
	struct core_bytes record;
	int64_t number = -1;

	if (!core_link_usable(self, method) ||
	    !core_get_bytes(method, "record", object, false, &record))
		return -1;
	nbytes = (Py_ssize_t)self->end.link.requests.record_nbytes;
	if (record.nbytes != nbytes)
		PyErr_Format(PyExc_ValueError, "%s: a request has %zd bytes, but %zd were given",
			     method, nbytes, record.nbytes);
	else
		number = push_request(self, method, record.data, timeout, claim);
	core_release_bytes(&record);
	return number;
}

static bool has_answer(void *context)
{
	struct waiting *wait = context;

	return __atomic_load_n(wait->record, __ATOMIC_RELAXED) ||
	       has_arrived(wait->link, wait->number) || core_requests_stopped(&wait->link->end) ||
	       is_lost(wait->link, wait->number);
}

static bool may_wait(void *context)
{
	struct waiting *wait = context;

	return core_link_usable(wait->link, wait->method);
}

static const char *why_unanswered(struct link *self, uint64_t number)
{
	if (!is_lost(self, number))
		return "was not answered, and the kernel has stopped";
	if (self->state == CORE_END_GONE)
		return "was not answered, and its kernel's process is gone: when "
		       "wait_for_kernel() has returned, its answer may still come";
	return "never will be answered: its kernel's process had taken it, and is gone";
}

/* Wait until the answer to a request is at *record, where it goes; false with an exception set. */
static bool wait_for_answer(struct link *self, const char *method, uint64_t number, int64_t timeout,
			    PyObject *const *record)
{
	struct waiting wait = {self, method, number, record};
	struct core_spin spin = {.look = has_answer,
				 .may_go_on = may_wait,
				 .context = &wait,
				 .looks = CORE_LOOKS_CACHED,
				 .timeout = timeout};
	enum core_spin_end end = core_spin(&spin);

	if (end == CORE_SPIN_ERROR)
		return false;
	if (*record)
		return true;
	if (has_arrived(self, number)) /* also what came just before the kernel stopped */
		return move_answer(self, number);
	if (end == CORE_SPIN_LATE)
		return core_raise(core_error_timeout, "%s: request %llu was not answered in time",
				  method, (unsigned long long)number);
	if (self->state == CORE_END_UNHEARD || self->state == CORE_END_LOST)
		return core_ring_refuse(&self->memory, method, self->state);
	return core_raise(core_error_closed, "%s: request %llu %s", method,
			  (unsigned long long)number, why_unanswered(self, number));
}

static PyObject *link_call(struct link *self, CORE_PARAMETERS)
{
	static const char *const names[] = {"record", "timeout", NULL};
	static const char method[] = "Link.call";
	int64_t timeout, number;
	PyObject *arg[2], *record = NULL;

	if (!core_parse(method, CORE_ARGUMENTS, names, 1, arg) ||
	    !core_as_timeout(method, arg[1], &timeout))
		return NULL;
	number = submit(self, method, arg[0], &timeout, &record);
	if (number < 0 || wait_for_answer(self, method, (uint64_t)number, timeout, &record))
		return record;
	if (record) /* moved here meanwhile */
		Py_CLEAR(record);
	else
		*claim_of(self, (uint64_t)number) = UNCLAIMED;
	return NULL;
}

static PyObject *link_close(struct link *self, void *Py_UNUSED(unused))
{
	if (!self->closed && core_ring_is_ours(&self->memory)) {
		if (self->memory.end == CORE_BOTH_ENDS)
			core_requests_close(&self->end, self->end.pushed);
		else if (self->memory.end == CORE_CPU_END)
			core_ring_store(&self->memory, CORE_LINK_CLOSER, self->memory.number);
	}
	if (self->memory.gpu)
		__atomic_store_n(&self->closed, true, __ATOMIC_RELAXED);
	Py_RETURN_NONE;
}

static PyObject *link_closed(struct link *self, void *Py_UNUSED(unused))
{
	return PyBool_FromLong(!self->memory.gpu ||
			       __atomic_load_n(&self->closed, __ATOMIC_RELAXED));
}

/* The first request that the kernel's end was to take: none that no caller has pushed. */
static uint64_t began(const struct link *self)
{
	uint64_t number = core_ring_load(&self->memory, CORE_LINK_BEGAN);

	return number < self->end.pushed ? number : self->end.pushed;
}

/*
 * With a new kernel's end, the caller waits until that takes it up; requests that the one before
 * took and did not answer are lost.
 */
static PyObject *link_set_state(struct link *self, PyObject *args)
{
	uint64_t lost = UINT64_MAX; /* all that are not answered */
	unsigned long long settled;
	enum core_ring_state state;

	if (!core_ring_told(&self->memory, args, &state, &settled))
		return NULL;
	if (state == CORE_END_OPEN) {
		state = CORE_END_WAITING;
		lost = began(self);
	}
	__atomic_store_n(&self->state, state, __ATOMIC_RELAXED);
	__atomic_store_n(&self->lost_below, lost, __ATOMIC_RELAXED);
	Py_RETURN_NONE;
}

static PyObject *link_awaited(struct link *self, void *Py_UNUSED(unused))
{
	uint64_t pushed = self->end.pushed, capacity = self->end.link.answers.capacity;
	uint64_t number = pushed > capacity ? pushed - capacity : 0;

	while (number < pushed && (!*claim_of(self, number) || has_arrived(self, number)))
		number++;
	return PyBool_FromLong(number < pushed);
}

static PyObject *link_closer(struct link *self, void *Py_UNUSED(unused))
{
	if (!core_ring_is_end(&self->memory, CORE_KERNEL_END))
		return NULL;
	return PyLong_FromUnsignedLongLong(core_ring_load(&self->memory, CORE_LINK_CLOSER));
}

static PyObject *link_descriptor(struct link *self, void *Py_UNUSED(unused))
{
	struct gdr_link described;

	if (!core_ring_is_end(&self->memory, CORE_KERNEL_END))
		return NULL;
	described =
		core_requests_described(&self->end, self->memory.gpu_ptr, self->memory.host_ptr);
	return PyBytes_FromStringAndSize((const char *)&described, sizeof(described));
}

static PyObject *link_end(struct link *self, void *Py_UNUSED(unused))
{
	if (!core_ring_is_end(&self->memory, CORE_KERNEL_END))
		return NULL;
	core_requests_close(&self->end, core_requests_count(&self->end));
	Py_RETURN_NONE;
}

static PyObject *link_begin(struct link *self, PyObject *object)
{
	uint64_t number, pushed;

	if (!core_ring_is_end(&self->memory, CORE_KERNEL_END) ||
	    !core_as_word("_begin", object, 8, &number))
		return NULL;
	core_ring_store(&self->memory, CORE_LINK_STOPPED, 0);
	pushed = core_requests_count(&self->end);
	if (!number) {
		core_requests_close(&self->end, pushed);
	} else {
		if (core_ring_load(&self->memory, CORE_LINK_ACCEPTED) != number)
			core_requests_clear_next(&self->end);
		core_requests_open(&self->end);
		core_ring_store(&self->memory, CORE_LINK_ACCEPTED, number);
	}
	return PyBool_FromLong(gdr_load_acquire(self->end.link.taken) < pushed);
}

CORE_METHOD_ALONE(link_call_alone, link, link_call)
CORE_ALONE(link_close, link)
CORE_ALONE(link_set_state, link)
CORE_ALONE(link_awaited, link)

/* Go on after the requests of the callers before, whose answers are to be dropped. */
static void join(struct link *self)
{
	uint64_t capacity = self->end.link.answers.capacity, pushed, number;

	pushed = self->end.pushed = core_requests_count(&self->end);
	/* Now, or a caller that dies before it tells of its first hides the one before. */
	__atomic_store_n(self->end.told, pushed, __ATOMIC_RELEASE);
	self->lost_below = began(self);
	self->state = CORE_END_WAITING;
	core_ring_store(&self->memory, CORE_LINK_CLOSER, 0);
	for (number = pushed > capacity ? pushed - capacity : 0; number < pushed; number++)
		if (number >= self->lost_below && !has_arrived(self, number))
			*claim_of(self, number) = UNCLAIMED;
}

/* Go on with the requests that the kernel's end before has left. It has no caller. */
static void take_over(struct link *self)
{
	self->closed = true;
	core_ring_store(&self->memory, CORE_LINK_BEGAN, core_requests_take_over(&self->end));
}

static int link_init(struct link *self, PyObject *args, PyObject *kwargs)
{
	static const struct core_ring_needs needs = {.gpu = CORE_LINK_NBYTES,
						     .host = CORE_LINK_ANSWERS,
						     .gpu_record = CORE_SLOT_FACTOR,
						     .host_answer = CORE_SLOT_FACTOR,
						     .capacity = CORE_SLOTS_MAX};
	struct core_ring_memory memory = {0};
	struct core_requests end = {0};
	PyObject ***claims;
	bool first;

	if (!core_init_once("Link", self->memory.gpu) ||
	    !core_ring_hold(&memory, "Link", args, kwargs, &needs, &end.link.requests,
			    &end.link.answers))
		return -1;
	claims = PyMem_Calloc(end.link.answers.capacity, sizeof(*claims));
	if (!claims) {
		core_ring_let_go(&memory);
		PyErr_NoMemory();
		return -1;
	}
	core_requests_place(&end, memory.gpu->type, memory.gpu->address, memory.host->address);
	if (memory.end == CORE_BOTH_ENDS) {
		Py_BEGIN_ALLOW_THREADS; /* clearing slots takes long; no other thread has them */
		core_requests_begin(&end, memory.gpu->address, memory.gpu_ptr, memory.host_ptr);
		Py_END_ALLOW_THREADS;
	}

	CORE_BEGIN_ALONE(self);
	first = core_init_once("Link", self->memory.gpu);
	if (first) {
		self->end = end;
		self->claims = claims;
		self->memory = memory;
		if (memory.end == CORE_CPU_END)
			join(self);
		else if (memory.end == CORE_KERNEL_END)
			take_over(self);
	}
	CORE_END_ALONE();
	if (first)
		return 0;
	core_ring_let_go(&memory);
	PyMem_Free(claims);
	return -1;
}

static int link_clear(struct link *self)
{
	core_ring_let_go(&self->memory);
	return 0;
}

static void link_dealloc(struct link *self)
{
	PyObject_GC_UnTrack(self);
	link_clear(self);
	PyMem_Free(self->claims);
	core_free_object(self);
}

CORE_TRAVERSE(link, CORE_VISIT_RING(self->memory))

static PyMethodDef link_methods[] = {
	{"call", CORE_FASTCALL(link_call_alone),
	 "call(record, timeout=None)\n--\n\n"
	 "Push a request, a contiguous buffer of `record_nbytes` bytes, and wait for its answer,\n"
	 "which is returned as bytes.\n\n"
	 "While it waits, other Python threads run and signals are handled. Threads may call at\n"
	 "the same time. `timeout`, in seconds, is that of the whole call; the kernel still gets\n"
	 "a request that was pushed.\n"
	 "Raises ValueError, Timeout, Closed (also if the kernel has stopped), Forked."},
	{"close", (PyCFunction)link_close_alone, METH_NOARGS,
	 "close()\n--\n\n"
	 "Tell the kernel that no more requests follow. May be called again.\n\n"
	 "Requests in the link can still be taken, and answered. The memory is freed with the\n"
	 "Link, its answers and its servers: keep them until the kernel has ended."},
	{"_set_state", (PyCFunction)link_set_state_alone, METH_VARARGS,
	 "Note what is at the other end."},
	{"_descriptor", (PyCFunction)link_descriptor, METH_NOARGS, "What kernels are given."},
	{"_begin", (PyCFunction)link_begin, METH_O,
	 "Begin a kernel's run for a caller, or 0; whether requests are left."},
	{"_leave", core_ring_leave, METH_NOARGS, "Have what pops or pushes raise Closed."},
	{"_end", (PyCFunction)link_end, METH_NOARGS, "Tell the kernel that no requests follow."},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef link_getset[] = {
	{"closed", (getter)link_closed, NULL, "Whether close() has been called.", NULL},
	{"_awaited", (getter)link_awaited_alone, NULL, "Whether result() may wait now.", NULL},
	{"_closer", (getter)link_closer, NULL, "The caller that closed it, or 0.", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef link_members[] = {
	{"record_nbytes", T_ULONGLONG, offsetof(struct link, end.link.requests.record_nbytes),
	 READONLY, "Bytes of a request."},
	{"answer_nbytes", T_ULONGLONG, offsetof(struct link, end.link.answers.record_nbytes),
	 READONLY, "Bytes of an answer."},
	{"capacity", T_ULONGLONG, offsetof(struct link, end.link.requests.capacity), READONLY,
	 "How many requests may be under way."},
	{NULL, 0, 0, 0, NULL},
};

static PyType_Slot link_slots[] = {
	{Py_tp_doc, "Link(memory, host, record_nbytes, capacity, answer_nbytes)\n--\n\n"
		    "Requests to a kernel, and its answers."},
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
	if (!self->record &&
	    (!core_link_usable(self->link, method) ||
	     !wait_for_answer(self->link, method, self->number, timeout, &self->record)))
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
	number = submit(link, "Link.submit", record, &timeout, &self->record);
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
