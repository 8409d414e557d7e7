/* SPDX-License-Identifier: MIT */
/* gdrpy._core._mapping.LinkServer: the kernel's end of a link, on the CPU. */
#include "link.h"

#include <structmember.h>

struct server {
	PyObject_HEAD struct link *link; /* NULL until it is initialized */
	uint64_t popped;
	bool closed;
};

static bool may_pop(void *object, const char *method)
{
	struct server *self = object;

	if (!self->link)
		return core_raise(PyExc_TypeError, "%s: the server was never initialized", method);
	if (!core_link_usable(self->link, method) ||
	    !core_ring_check_place(&self->link->memory, method))
		return false;
	return !self->closed || core_raise(core_error_closed, "%s: the server is closed", method);
}

static uint64_t ready(void *object, uint64_t Py_UNUSED(most))
{
	struct server *self = object;

	return (uint64_t)gdr_slot_get(&self->link->end.link.requests, self->popped, NULL);
}

static void take(void *object, char *record, uint64_t Py_UNUSED(count))
{
	struct server *self = object;
	const struct gdr_link *link = &self->link->end.link;

	gdr_slot_get(&link->requests, self->popped++, record);
	core_load_fence(); /* what was stored before the request is there, too */
	gdr_publish((unsigned long long *)(uintptr_t)link->taken, self->popped);
}

static bool ended(void *object)
{
	struct server *self = object;
	uint64_t end = gdr_load_acquire(self->link->end.link.end);

	return end && self->popped >= end - 1;
}

static bool has_news(void *object)
{
	struct server *self = object;

	return ready(self, 1) || ended(self) || __atomic_load_n(&self->closed, __ATOMIC_RELAXED);
}

static PyObject *server_pop(struct server *self, CORE_PARAMETERS)
{
	struct core_popping end = {.self = self,
				   .method = "LinkServer.pop",
				   .may_pop = may_pop,
				   .ready = ready,
				   .take = take,
				   .ended = ended,
				   .has_news = has_news};

	if (self->link) {
		end.nbytes = self->link->end.link.requests.record_nbytes;
		end.looks = self->link->end.type == CORE_MAPPING_CACHED ? CORE_LOOKS_CACHED
									: CORE_LOOKS_UNCACHED;
	}
	return core_pop(&end, CORE_ARGUMENTS);
}

/* Why a request cannot be answered, or NULL. */
static const char *refusal(struct server *self, uint64_t number)
{
	const struct core_requests *end = &self->link->end;

	if (number >= self->popped)
		return "has not been taken";
	/* The caller tells of a request after it has pushed it. */
	if ((int64_t)(__atomic_load_n(end->told, __ATOMIC_ACQUIRE) - number) >
		    (int64_t)end->link.requests.capacity ||
	    gdr_slot_get(&end->link.answers, number, NULL))
		return "has been answered before";
	return NULL;
}

static PyObject *server_answer(struct server *self, CORE_PARAMETERS)
{
	static const char *const names[] = {"number", "record", NULL};
	static const char method[] = "LinkServer.answer";
	const struct gdr_slots *answers;
	const char *reason = NULL;
	struct core_bytes record;
	PyObject *arg[2];
	uint64_t number;

	if (!core_parse(method, CORE_ARGUMENTS, names, 2, arg) ||
	    !core_as_word(method, arg[0], 8, &number))
		return NULL;
	if (!self->link)
		return PyErr_Format(PyExc_TypeError, "%s: the server was never initialized",
				    method);
	if (!core_link_usable(self->link, method) ||
	    !core_ring_check_place(&self->link->memory, method) ||
	    !core_get_bytes(method, "record", arg[1], false, &record))
		return NULL;
	answers = &self->link->end.link.answers;
	if ((uint64_t)record.nbytes != answers->record_nbytes) {
		PyErr_Format(PyExc_ValueError, "%s: an answer has %llu bytes, but %zd were given",
			     method, (unsigned long long)answers->record_nbytes, record.nbytes);
	} else {
		CORE_BEGIN_BOTH_ALONE(self, self->link);
		reason = refusal(self, number);
		if (!reason)
			gdr_slot_put(answers, number, record.data);
		CORE_END_BOTH_ALONE();
	}
	core_release_bytes(&record);
	if (reason)
		PyErr_Format(PyExc_ValueError, "%s: request %llu %s", method,
			     (unsigned long long)number, reason);
	return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *server_close(struct server *self, void *Py_UNUSED(unused))
{
	if (self->link && !self->closed) {
		if (core_ring_has_place(&self->link->memory))
			gdr_store(self->link->end.link.stopped, 1);
		__atomic_store_n(&self->closed, true, __ATOMIC_RELAXED);
	}
	Py_RETURN_NONE;
}

static PyObject *server_popped(struct server *self, void *Py_UNUSED(unused))
{
	if (self->link && !core_link_usable(self->link, "LinkServer.popped"))
		return NULL;
	return PyLong_FromUnsignedLongLong(self->popped);
}

static PyObject *server_closed(struct server *self, void *Py_UNUSED(unused))
{
	return PyBool_FromLong(!self->link || __atomic_load_n(&self->closed, __ATOMIC_RELAXED));
}

CORE_METHOD_ALONE(server_pop_alone, server, server_pop)
CORE_ALONE(server_close, server)
CORE_ALONE(server_popped, server)

static int server_init(struct server *self, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"link", NULL};
	struct link *link;

	if (!core_init_once("LinkServer", self->link) ||
	    !PyArg_ParseTupleAndKeywords(args, kwargs, "O!:LinkServer", names,
					 core_link_type_object, &link) ||
	    !core_link_usable(link, "LinkServer"))
		return -1;
	if (link->memory.end == CORE_BOTH_ENDS && core_requests_stopped(&link->end)) {
		PyErr_Format(core_error_closed,
			     "Link.server: the kernel has stopped: make another Link");
		return -1;
	}
	self->link = (struct link *)Py_NewRef((PyObject *)link);
	self->popped = gdr_load_acquire(link->end.link.taken);
	return 0;
}

static int server_clear(struct server *self)
{
	Py_CLEAR(self->link);
	return 0;
}

CORE_TRAVERSE(server, Py_VISIT(self->link))
CORE_DEALLOC(server)

static PyMethodDef server_methods[] = {
	{"pop", CORE_FASTCALL(server_pop_alone),
	 "pop(timeout=None)\n--\n\n"
	 "Wait for a request and take it, as bytes; None at the link's end.\n\n"
	 "While it waits, other Python threads run and signals are handled.\n"
	 "Raises Timeout, Closed (the server is), Forked."},
	{"answer", CORE_FASTCALL(server_answer),
	 "answer(number, record)\n--\n\n"
	 "Answer request `number` by a contiguous buffer of `answer_nbytes` bytes.\n\n"
	 "Raises ValueError: of another size, not taken yet, or answered before; Forked."},
	{"close", (PyCFunction)server_close_alone, METH_NOARGS,
	 "close()\n--\n\n"
	 "Answer no more requests: calls that wait for an answer raise Closed. May be called\n"
	 "again."},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef server_getset[] = {
	{"popped", (getter)server_popped_alone, NULL,
	 "How many requests were taken: the number of the next one.", NULL},
	{"closed", (getter)server_closed, NULL, "Whether close() has been called.", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef server_members[] = {
	{"link", T_OBJECT_EX, offsetof(struct server, link), READONLY,
	 "The link that it serves and keeps alive."},
	{NULL, 0, 0, 0, NULL},
};

static PyType_Slot server_slots[] = {
	{Py_tp_doc, "LinkServer(link)\n--\n\nThe kernel's end of a link, on the CPU."},
	{Py_tp_init, server_init},
	CORE_COLLECTED(server),
	{Py_tp_methods, server_methods},
	{Py_tp_getset, server_getset},
	{Py_tp_members, server_members},
	{0, NULL},
};

CORE_TYPE(server, "LinkServer", Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC);
