/* SPDX-License-Identifier: MIT */
/*
 * gdrpy._core._mapping.CopyQueue: steps that a channel of the copy engine does in order.
 *
 * The memory that a job's steps use is held until the job is done: GPU memory by its region, which
 * counts it as a running copy, and host memory by its buffer.
 */
#include "spin.h"
#include "transfers.h"

#include <sched.h>
#include <stdlib.h>

#define NOT_SUBMITTED UINT64_MAX

struct held {
	struct held *next;
	uint64_t job;
	struct transfers *region; /* or NULL */
	PyObject *capsule;	  /* keeps memory */
	struct core_engine_memory *memory;
	PyObject *buffer; /* or NULL */
	struct core_bytes bytes;
	struct core_registration *registration;
};

struct queue {
	PyObject_HEAD struct core_queue *core; /* NULL unless it is open */
	struct held *held, *last;	       /* oldest first, those not submitted last */
	struct held *added;		       /* the first of those */
	uint64_t done;			       /* the last job that was seen to be done */
	unsigned int generation;
	int busy; /* calls that use `core` without the GIL */
	bool closing;
};

static bool usable(struct queue *self, const char *method)
{
	PyObject *checked;

	if (self->core && !self->closing && self->generation == core_fork_generation)
		return true;
	checked = PyObject_CallMethod((PyObject *)self, "_check", "s", method);
	if (checked)
		PyErr_Format(core_error_closed, "%s: the CopyQueue is closed", method);
	Py_XDECREF(checked);
	return false;
}

/* Between these, other Python threads run, and close() waits. */
static PyThreadState *begin(struct queue *self)
{
	__atomic_fetch_add(&self->busy, 1, __ATOMIC_SEQ_CST);
	return PyEval_SaveThread();
}

static void end(struct queue *self, PyThreadState *thread)
{
	PyEval_RestoreThread(thread);
	__atomic_fetch_sub(&self->busy, 1, __ATOMIC_SEQ_CST);
}

static void *fail(const char *method, struct core_error *error)
{
	core_explain(error, "%s", method);
	return core_raise_failure(error);
}

/* The memory that a step uses: kept on success, and let go otherwise. */

static void let_go(struct held *held)
{
	if (!held)
		return;
	if (held->region) {
		CORE_BEGIN_ALONE(held->region);
		core_transfers_end(held->region);
		CORE_END_ALONE();
		Py_DECREF(held->capsule);
		Py_DECREF(held->region);
	}
	if (held->registration && core_registration_drop(held->registration)) {
		Py_BEGIN_ALLOW_THREADS;
		core_registration_free(held->registration);
		Py_END_ALLOW_THREADS;
	}
	if (held->buffer) {
		core_release_bytes(&held->bytes);
		Py_DECREF(held->buffer);
	}
	free(held);
}

static void keep(struct queue *self, struct held *held)
{
	held->job = NOT_SUBMITTED;
	if (self->held)
		self->last->next = held;
	else
		self->held = held;
	self->last = held;
	if (!self->added)
		self->added = held;
}

static struct held *new_held(void)
{
	struct held *held = calloc(1, sizeof(*held));

	if (!held)
		PyErr_NoMemory();
	return held;
}

static struct held *hold_region(const char *method, PyObject *object, bool to_write)
{
	struct transfers *region = (struct transfers *)object;
	struct held *held;

	if (!PyObject_TypeCheck(object, core_transfers_type_object)) {
		PyErr_Format(PyExc_TypeError, "%s: region must be a Region or a Pin, not %R",
			     method, (PyObject *)Py_TYPE(object));
		return NULL;
	}
	held = new_held();
	if (!held)
		return NULL;
	CORE_BEGIN_ALONE(region);
	if (core_transfers_ready(region, method, to_write, CORE_BY_ENGINE)) {
		region->running++;
		held->region = (struct transfers *)Py_NewRef(object);
		held->capsule = Py_NewRef(region->engine_capsule);
		held->memory = region->engine;
	}
	CORE_END_ALONE();
	if (held->region)
		return held;
	free(held);
	return NULL;
}

static struct held *hold_buffer(const char *method, const char *name, PyObject *object,
				bool writable)
{
	struct held *held = new_held();

	if (!held)
		return NULL;
	if (core_get_bytes(method, name, object, writable, &held->bytes)) {
		held->buffer = Py_NewRef(object);
		return held;
	}
	free(held);
	return NULL;
}

/* Note which jobs are done; false if the queue cannot tell any more. Runs no Python code. */
static bool note_progress(struct queue *self)
{
	struct core_error ignored;
	uint64_t done;

	if (!self->core || self->generation != core_fork_generation)
		return false;
	core_queue_progress(self->core, &done, &ignored);
	if (done > self->done)
		self->done = done;
	return true;
}

/* Let go the memory that finished jobs used. */
static void settle(struct queue *self)
{
	struct held *held;

	if (!note_progress(self))
		return;
	while (self->held && self->held->job <= self->done) {
		held = self->held;
		self->held = held->next;
		let_go(held); /* may run Python code */
	}
}

/* Add a step that uses the held memory; false with an exception set. */
static bool add(struct queue *self, const char *method, const struct core_queue_step *step,
		struct held *region, struct held *other)
{
	struct core_registration *registration = NULL;
	struct core_error error;
	PyThreadState *thread;
	int ret;

	if (!usable(self, method))
		return false;
	thread = begin(self);
	ret = core_queue_add(self->core, step, &registration, &error); /* may pin memory */
	end(self, thread);
	if (ret < 0)
		return fail(method, &error);
	if (ret)
		return core_raise(PyExc_ValueError,
				  "%s: a queue copies registered host memory, and this buffer is "
				  "not, or the driver does not pin it: keep "
				  "gdrpy.register(buffer) open",
				  method);
	/* Steps that another thread submits in between are held until the next job is done. */
	keep(self, region);
	if (other) {
		other->registration = registration;
		keep(self, other);
	}
	return true;
}

static PyObject *add_word(struct queue *self, const char *method, enum core_queue_step_kind kind,
			  CORE_PARAMETERS)
{
	static const char *const names[] = {"region", "offset", "value", NULL};
	struct core_copy word = {.method = method, .nbytes = sizeof(uint32_t)};
	struct core_queue_step step = {.kind = kind};
	struct held *held;
	PyObject *arg[3];
	uint64_t value;

	if (!core_parse(method, CORE_ARGUMENTS, names, 3, arg) || !usable(self, method))
		return NULL;
	word.offset = core_as_size(method, "offset", arg[1], 0);
	if (word.offset < 0 || !core_as_word(method, arg[2], sizeof(uint32_t), &value))
		return NULL;
	if (word.offset % (Py_ssize_t)sizeof(uint32_t))
		return PyErr_Format(PyExc_ValueError, "%s: offset %zd is not aligned to 4 bytes",
				    method, word.offset);
	held = hold_region(method, arg[0], kind == CORE_STEP_SET);
	if (!held)
		return NULL;
	step.memory = held->memory;
	step.offset = (uint64_t)word.offset;
	step.value = (uint32_t)value;
	if (core_transfers_range(held->region, &word) && add(self, method, &step, held, NULL))
		Py_RETURN_NONE;
	let_go(held);
	return NULL;
}

/* The other side of a copy with a region; NULL with an exception set. */
static struct held *hold_other(const char *method, const char *name, PyObject *object,
			       PyObject *region, bool to_write)
{
	if (!PyObject_TypeCheck(object, core_transfers_type_object))
		return hold_buffer(method, name, object, !to_write);
	if (object != region)
		return hold_region(method, object, !to_write);
	core_raise_own(method);
	return NULL;
}

static PyObject *add_copy(struct queue *self, const char *method, enum core_queue_step_kind kind,
			  CORE_PARAMETERS)
{
	const bool to_write = kind == CORE_STEP_WRITE;
	const char *const names[] = {to_write ? "data" : "buffer", "region", "offset", NULL};
	struct core_copy copy = {.method = method};
	struct core_queue_step step = {.kind = kind};
	struct held *region, *other;
	PyObject *arg[3];

	if (!core_parse(method, CORE_ARGUMENTS, names, 2, arg) || !usable(self, method))
		return NULL;
	copy.offset = core_as_size(method, "offset", arg[2], 0);
	if (copy.offset < 0)
		return NULL;
	region = hold_region(method, arg[1], to_write);
	if (!region)
		return NULL;
	other = hold_other(method, names[0], arg[0], arg[1], to_write);
	if (!other)
		goto let_go_region;
	copy.nbytes = other->region ? other->region->nbytes : other->bytes.nbytes;
	step.memory = region->memory;
	step.offset = (uint64_t)copy.offset;
	step.other = other->memory;
	step.host = other->bytes.data;
	step.nbytes = (uint64_t)copy.nbytes;
	if (!core_transfers_range(region->region, &copy))
		goto let_go_both;
	if (other->memory &&
	    core_engine_overlap(region->memory, step.offset, other->memory, 0, step.nbytes)) {
		core_raise_own(method);
		goto let_go_both;
	}
	if (add(self, method, &step, region, other))
		Py_RETURN_NONE;
let_go_both:
	let_go(other);
let_go_region:
	let_go(region);
	return NULL;
}

struct wait {
	struct queue *queue;
	const char *method;
	uint64_t job;
	bool done, failed;
	struct core_error error;
};

/* Whether a job is done or has failed. Runs without the GIL too, and beside close(). */
static bool look(void *context)
{
	struct wait *wait = context;
	struct queue *queue = wait->queue;
	uint64_t done;

	__atomic_fetch_add(&queue->busy, 1, __ATOMIC_SEQ_CST);
	if (!__atomic_load_n(&queue->closing, __ATOMIC_SEQ_CST)) {
		wait->failed = core_queue_progress(queue->core, &done, &wait->error);
		wait->done = done >= wait->job;
	} else {
		/* close() looked before: a job that was done then is done. */
		wait->done = __atomic_load_n(&queue->done, __ATOMIC_RELAXED) >= wait->job;
	}
	__atomic_fetch_sub(&queue->busy, 1, __ATOMIC_SEQ_CST);
	return wait->done || wait->failed;
}

static bool may_go_on(void *context)
{
	struct wait *wait = context;

	return look(wait) || usable(wait->queue, wait->method);
}

/*
 * Wait for a job, and leave what is left of the timeout; false with an exception set, which `late`
 * formats after the timeout.
 */
static bool wait_for(struct queue *self, const char *method, uint64_t job, int64_t *timeout,
		     const char *late)
{
	struct wait wait = {.queue = self, .method = method, .job = job};
	struct core_spin spin = {.look = look,
				 .may_go_on = may_go_on,
				 .context = &wait,
				 .looks = CORE_LOOKS_CACHED,
				 .timeout = *timeout,
				 .naps = true};
	enum core_spin_end end;

	if (job > self->done) {
		if (!usable(self, method))
			return false;
		end = core_spin(&spin);
		*timeout = spin.timeout;
		if (end == CORE_SPIN_LATE)
			return core_raise(core_error_timeout, late, method);
		if (end == CORE_SPIN_ERROR)
			return false;
		if (!wait.done)
			return fail(method, &wait.error);
	}
	settle(self);
	return true;
}

/* submit(timeout=None): the number of the job. */
static PyObject *queue_submit(struct queue *self, PyObject *argument)
{
	static const char method[] = "CopyQueue.submit";
	int64_t timeout;
	uint64_t job;

	if (!core_as_timeout(method, argument, &timeout))
		return NULL;
	for (;;) {
		if (!usable(self, method))
			return NULL;
		settle(self);
		if (!usable(self, method))
			return NULL;
		if (core_queue_submit(self->core, &job))
			break;
		if (!wait_for(self, method, job, &timeout,
			      "%s: the queue has no room for the job yet: its jobs wait for words "
			      "that are not set"))
			return NULL;
	}
	for (; self->added; self->added = self->added->next)
		self->added->job = job;
	return PyLong_FromUnsignedLongLong(job);
}

/* _wait(job, timeout) */
static PyObject *queue_wait_for(struct queue *self, PyObject *args)
{
	unsigned long long job;
	PyObject *object;
	int64_t timeout;

	if (!PyArg_ParseTuple(args, "KO:_wait", &job, &object) ||
	    !core_as_timeout("CopyJob.wait", object, &timeout) ||
	    !wait_for(self, "CopyJob.wait", job, &timeout, "%s: the job is not done in time"))
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *queue_is_done(struct queue *self, PyObject *number)
{
	static const char method[] = "CopyJob.done";
	struct wait wait = {.queue = self, .done = true};

	wait.job = PyLong_AsUnsignedLongLong(number);
	if (PyErr_Occurred())
		return NULL;
	if (wait.job > self->done) {
		if (!usable(self, method))
			return NULL;
		look(&wait);
		settle(self);
	}
	return wait.done || !wait.failed ? PyBool_FromLong(wait.done) : fail(method, &wait.error);
}

static PyObject *queue_open(struct queue *self, PyObject *region)
{
	static const char method[] = "CopyQueue";
	struct core_error error;
	struct core_queue *core;
	struct held *held;

	if (!core_init_once(method, self->core))
		return NULL;
	held = hold_region(method, region, false);
	if (!held)
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	core = core_queue_open(held->memory, &error);
	Py_END_ALLOW_THREADS;
	let_go(held);
	if (!core)
		return fail(method, &error);
	self->core = core;
	self->generation = core_fork_generation;
	Py_RETURN_NONE;
}

/*
 * All memory is let go when the channel is freed: a finalizer that this runs may close the queue
 * again, which does nothing then.
 */
static void close_it(struct queue *self)
{
	const int64_t began = core_now_ns();
	struct core_queue *core = self->core;
	struct held *held;

	if (core && !self->closing) {
		note_progress(self);
		__atomic_store_n(&self->closing, true, __ATOMIC_SEQ_CST);
		Py_BEGIN_ALLOW_THREADS;
		while (__atomic_load_n(&self->busy, __ATOMIC_SEQ_CST) &&
		       self->generation == core_fork_generation) {
			sched_yield();
			core_nap(core_now_ns() - began);
		}
		Py_END_ALLOW_THREADS;
		self->core = NULL;
		Py_BEGIN_ALLOW_THREADS;
		core_queue_close(core);
		Py_END_ALLOW_THREADS;
		self->added = NULL;
		while ((held = self->held)) {
			self->held = held->next;
			let_go(held);
		}
	}
}

static PyObject *queue_close(struct queue *self, PyObject *Py_UNUSED(unused))
{
	close_it(self);
	Py_RETURN_NONE;
}

static PyObject *queue_settle(struct queue *self, PyObject *Py_UNUSED(unused))
{
	settle(self);
	Py_RETURN_NONE;
}

CORE_METHOD_ALONE(queue_wait, queue, add_word, "CopyQueue.wait", CORE_STEP_WAIT)
CORE_METHOD_ALONE(queue_set, queue, add_word, "CopyQueue.set", CORE_STEP_SET)
CORE_METHOD_ALONE(queue_write, queue, add_copy, "CopyQueue.write", CORE_STEP_WRITE)
CORE_METHOD_ALONE(queue_readinto, queue, add_copy, "CopyQueue.readinto", CORE_STEP_READ)
CORE_ALONE(queue_submit, queue)
CORE_ALONE(queue_wait_for, queue)
CORE_ALONE(queue_is_done, queue)
CORE_ALONE(queue_open, queue)
CORE_ALONE(queue_close, queue)
CORE_ALONE(queue_settle, queue)

static int queue_traverse(struct queue *self, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE((PyObject *)self));
	for (struct held *held = self->held; held; held = held->next) {
		Py_VISIT(held->region);
		Py_VISIT(held->buffer);
	}
	return 0;
}

static int queue_clear(struct queue *self)
{
	close_it(self);
	return 0;
}

CORE_DEALLOC(queue)

static PyMethodDef queue_methods[] = {
	{"wait", CORE_FASTCALL(queue_wait),
	 "wait(region, offset, value)\n--\n\n"
	 "Add a wait of the GPU until a 32-bit word of GPU memory is at least `value`.\n\n"
	 "Args:\n"
	 "    region: A Region or Pin on the queue's GPU.\n"
	 "    offset: The byte at which the word begins, aligned to 4.\n"
	 "    value: What the word is compared with, cyclically: the signed difference is not\n"
	 "        negative.\n\n"
	 "Raises ValueError outside the region, BackendUnavailable with the reason."},
	{"readinto", CORE_FASTCALL(queue_readinto),
	 "readinto(buffer, region, offset=0)\n--\n\n"
	 "Add a copy out of the region.\n\n"
	 "Args:\n"
	 "    buffer: A buffer inside gdrpy.register(), or another region on the same GPU. It is\n"
	 "        filled.\n"
	 "    region: A Region or Pin on the queue's GPU.\n"
	 "    offset: The first byte.\n\n"
	 "Raises ValueError outside the region, and for a buffer that is not registered."},
	{"write", CORE_FASTCALL(queue_write),
	 "write(data, region, offset=0)\n--\n\n"
	 "Add a copy into the region.\n\n"
	 "Args:\n"
	 "    data: A buffer inside gdrpy.register(), or another region on the same GPU. Its "
	 "bytes\n"
	 "        are read when the copy runs.\n"
	 "    region: A Region or Pin on the queue's GPU.\n"
	 "    offset: The byte of the region that the first one goes to.\n\n"
	 "Raises ValueError outside the region, and for a buffer that is not registered; "
	 "ReadOnly."},
	{"set", CORE_FASTCALL(queue_set),
	 "set(region, offset, value)\n--\n\n"
	 "Add a store of a 32-bit word to GPU memory, after all steps before it.\n\n"
	 "Args:\n"
	 "    region: A Region or Pin on the queue's GPU.\n"
	 "    offset: The byte at which the word begins, aligned to 4.\n"
	 "    value: The word.\n\n"
	 "Raises ValueError outside the region, ReadOnly."},
	{"_submit", (PyCFunction)queue_submit_alone, METH_O, NULL},
	{"_wait", (PyCFunction)queue_wait_for_alone, METH_VARARGS, NULL},
	{"_is_done", (PyCFunction)queue_is_done_alone, METH_O, NULL},
	{"_open", (PyCFunction)queue_open_alone, METH_O, NULL},
	{"_close", (PyCFunction)queue_close_alone, METH_NOARGS, NULL},
	{"_settle", (PyCFunction)queue_settle_alone, METH_NOARGS,
	 "_settle()\n--\n\nLet go the memory that finished jobs used."},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot queue_slots[] = {
	{Py_tp_doc, "Steps that the copy engine does in order. See gdrpy.memory.queue.CopyQueue."},
	CORE_COLLECTED(queue),
	{Py_tp_methods, queue_methods},
	{0, NULL},
};

CORE_TYPE(queue, "CopyQueue", Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC);
