/* SPDX-License-Identifier: MIT */
#include "records.h"

#include "channel/ring.h"

/* The most that push_many() stores before it publishes the records. */
#define BATCH_NBYTES (16 * 1024)
/* The time after which it lets other Python threads run and handles signals. */
#define LOCKED_NS 1000000

static bool fits(const struct mapping *mapping, Py_ssize_t fixed, Py_ssize_t record,
		 Py_ssize_t capacity)
{
	return mapping->nbytes >= fixed &&
	       (!record || (mapping->nbytes - fixed) / record >= capacity);
}

static bool is_record_size(Py_ssize_t nbytes)
{
	return nbytes > 0 && nbytes % CORE_RING_RECORD_UNIT == 0 && nbytes <= CORE_RING_RECORD_MAX;
}

bool core_ring_hold(struct core_ring_memory *memory, const char *type, PyObject *args,
		    PyObject *kwargs, const struct core_ring_needs *needs,
		    struct gdr_slots *records, struct gdr_slots *answers)
{
	static char *names[] = {"memory",	 "host", "record_nbytes", "capacity",
				"answer_nbytes", "end",	 "number",	  NULL};
	PyTypeObject *mapping = core_mapping_type_object;
	struct mapping *gpu, *host;
	Py_ssize_t nbytes, capacity, answer = 0;
	unsigned long long number = 0;
	int end = CORE_BOTH_ENDS;

	if (!core_init_once(type, memory->gpu) ||
	    !PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!nn|niK", names, mapping, &gpu, mapping,
					 &host, &nbytes, &capacity, &answer, &end, &number) ||
	    !core_mapping_writable(gpu, type) || !core_mapping_writable(host, type))
		return false;
	if (!is_record_size(nbytes) || !(answers ? is_record_size(answer) : answer == 0) ||
	    capacity <= 0 || capacity & (capacity - 1) || capacity > needs->capacity ||
	    !fits(gpu, needs->gpu, needs->gpu_record * nbytes, capacity) ||
	    !fits(host, needs->host, needs->host_record * nbytes + needs->host_answer * answer,
		  capacity))
		return core_raise(PyExc_ValueError,
				  "%s: record_nbytes, capacity%s or the mappings' size is out of "
				  "range",
				  type, answers ? ", answer_nbytes" : "");
	if (end < CORE_BOTH_ENDS || end > CORE_KERNEL_END)
		return core_raise(PyExc_ValueError, "%s: end must be 0, 1 or 2, not %d", type, end);
	memory->end = (enum core_ring_end)end;
	memory->number = number;
	if (end != CORE_CPU_END) {
		memory->gpu_ptr = PyLong_AsUnsignedLongLong(gpu->ptr);
		if (PyErr_Occurred())
			return false;
		memory->host_ptr = PyLong_AsUnsignedLongLong(host->ptr);
		if (PyErr_Occurred())
			return false;
	}
	if (!core_mapping_hold(gpu, type, CORE_ONE_VIEW))
		return false;
	if (!core_mapping_hold(host, type, CORE_ONE_VIEW)) {
		core_mapping_let_go(gpu, CORE_ONE_VIEW);
		return false;
	}
	memory->gpu = (struct mapping *)Py_NewRef((PyObject *)gpu);
	memory->host = (struct mapping *)Py_NewRef((PyObject *)host);
	*records = (struct gdr_slots){0, (uint64_t)capacity, (uint64_t)nbytes};
	if (answers)
		*answers = (struct gdr_slots){0, (uint64_t)capacity, (uint64_t)answer};
	return true;
}

static void let_go(struct mapping **mapping)
{
	if (*mapping)
		core_mapping_let_go(*mapping, CORE_ONE_VIEW);
	Py_CLEAR(*mapping);
}

void core_ring_let_go(struct core_ring_memory *memory)
{
	let_go(&memory->gpu);
	let_go(&memory->host);
	Py_CLEAR(memory->reason);
}

bool core_ring_usable(const struct core_ring_memory *memory, const char *type, const char *method)
{
	if (!memory->gpu)
		return core_raise(PyExc_TypeError, "%s: the %s was never initialized", method,
				  type);
	if (memory->gpu->generation != core_fork_generation)
		return core_raise(core_error_forked,
				  "%s: this %s belongs to the parent process; a forked child must "
				  "create one",
				  method, type);
	return true;
}

bool core_ring_check_place(const struct core_ring_memory *memory, const char *method)
{
	return core_ring_has_place(memory) ||
	       core_raise(core_error_closed,
			  "%s: its KernelEnd was closed, or has lost its place: open another",
			  method);
}

PyObject *core_ring_leave(PyObject *self, PyObject *Py_UNUSED(unused))
{
	struct core_ring_memory *memory = &((struct core_ring_object *)self)->memory;

	if (!core_ring_is_end(memory, CORE_KERNEL_END))
		return NULL;
	__atomic_store_n(&memory->left, true, __ATOMIC_RELAXED);
	Py_RETURN_NONE;
}

bool core_ring_refuse(const struct core_ring_memory *memory, const char *method,
		      enum core_ring_state state)
{
	static const char *const reasons[] = {
		[CORE_END_GONE] = "the kernel's end was closed, or its process has ended: try "
				  "again when a process has opened it",
		[CORE_END_LOST] = "its name was deleted, or the broker lost its state: open it "
				  "again",
		[CORE_END_UNHEARD] = "the thread that hears of the kernel's end has failed: open "
				     "this end again",
	};
	PyObject *error = PyObject_CallFunction(
		core_error_closed, "N", PyUnicode_FromFormat("%s: %s", method, reasons[state]));

	if (error && memory->reason)
		PyException_SetCause(error, Py_NewRef(memory->reason));
	if (error)
		PyErr_SetObject(core_error_closed, error);
	Py_XDECREF(error);
	return false;
}

bool core_ring_told(struct core_ring_memory *memory, PyObject *args, enum core_ring_state *state,
		    unsigned long long *settled)
{
	PyObject *reason;
	int value;

	if (!core_ring_is_end(memory, CORE_CPU_END) ||
	    !PyArg_ParseTuple(args, "iKO:_set_state", &value, settled, &reason))
		return false;
	if (value < CORE_END_OPEN || value > CORE_END_UNHEARD)
		return core_raise(PyExc_ValueError, "_set_state: %d is not a state", value);
	*state = (enum core_ring_state)value;
	if (reason != Py_None && !memory->reason) /* the thread that tells has one in the end */
		memory->reason = Py_NewRef(reason);
	return true;
}

bool core_ring_is_end(const struct core_ring_memory *memory, enum core_ring_end end)
{
	return (core_ring_is_ours(memory) && memory->end == end) ||
	       core_raise(core_error_closed, "this is not that end of a named ring");
}

static bool push_may_go_on(void *context)
{
	const struct core_pushing *end = context;

	return end->may_push(end->self, end->method);
}

static bool push_look(void *context)
{
	const struct core_pushing *end = context;

	return end->has_news(end->self);
}

static bool wait_for_room(const struct core_pushing *end, int64_t *timeout)
{
	struct core_spin spin = {.look = push_look,
				 .may_go_on = push_may_go_on,
				 .context = (void *)end,
				 .looks = CORE_LOOKS_CACHED,
				 .timeout = *timeout};
	enum core_spin_end came = core_spin(&spin);

	*timeout = spin.timeout;
	if (came == CORE_SPIN_LATE)
		PyErr_Format(core_error_timeout,
			     end->is_held_up && end->is_held_up(end->self)
				     ? "%s: another producer of the ring of %llu records did not "
				       "end its push in time, as while its process is stopped; "
				       "%llu records have been pushed so far"
				     : "%s: the ring of %llu records is full, and nothing was "
				       "taken in time; %llu records have been pushed so far",
			     end->method, (unsigned long long)end->capacity,
			     (unsigned long long)*end->pushed);
	return came == CORE_SPIN_CAME;
}

static bool let_others_run(int64_t *since)
{
	if (core_now_ns() - *since < LOCKED_NS)
		return true;
	PyEval_RestoreThread(PyEval_SaveThread());
	*since = core_now_ns();
	return !PyErr_CheckSignals();
}

static bool push_all(const struct core_pushing *end, const char *records, uint64_t count,
		     int64_t timeout)
{
	uint64_t nbytes = end->nbytes;
	uint64_t batch = nbytes < BATCH_NBYTES ? BATCH_NBYTES / nbytes : 1;
	uint64_t pushed = end->push(end->self, records, count < batch ? count : batch);
	int64_t since;

	if (pushed == count)
		return true;

	since = core_now_ns();
	do {
		records += pushed * nbytes;
		count -= pushed;
		if ((!pushed && !wait_for_room(end, &timeout)) || !let_others_run(&since) ||
		    !end->may_push(end->self, end->method))
			return false;
		pushed = end->push(end->self, records, count < batch ? count : batch);
	} while (pushed < count);
	return true;
}

PyObject *core_push(const struct core_pushing *end, bool many, CORE_PARAMETERS)
{
	static const char *const names[][3] = {{"record", "timeout", NULL},
					       {"records", "timeout", NULL}};
	Py_ssize_t nbytes = (Py_ssize_t)end->nbytes;
	bool pushed = false;
	PyObject *arg[2];
	int64_t timeout;
	Py_buffer data;

	if (!core_parse(end->method, CORE_ARGUMENTS, names[many], 1, arg) ||
	    !core_as_timeout(end->method, arg[1], &timeout) ||
	    !end->may_push(end->self, end->method) ||
	    !core_get_view(end->method, names[many][0], arg[0], 0, &data))
		return NULL;

	if (many ? data.len % nbytes != 0 : data.len != nbytes)
		PyErr_Format(PyExc_ValueError,
			     many ? "%s: a record has %zd bytes, and %zd is not a multiple"
				  : "%s: a record has %zd bytes, but %zd were given",
			     end->method, nbytes, data.len);
	else if (end->may_push(end->self, end->method)) /* the buffer may have run Python code */
		pushed = push_all(end, data.buf, (uint64_t)(data.len / nbytes), timeout);
	PyBuffer_Release(&data);
	return pushed ? Py_NewRef(Py_None) : NULL;
}

static bool pop_may_go_on(void *context)
{
	const struct core_popping *end = context;

	return end->may_pop(end->self, end->method);
}

static bool pop_look(void *context)
{
	const struct core_popping *end = context;

	return end->has_news(end->self);
}

/* Wait for records; returns how many are ready, up to `most`, 0 at the end, -1 on error. */
static int64_t wait_for_records(const struct core_popping *end, uint64_t most, PyObject *limit)
{
	struct core_spin spin = {.look = pop_look,
				 .may_go_on = pop_may_go_on,
				 .context = (void *)end,
				 .looks = end->looks};
	enum core_spin_end came;
	int64_t ready;

	if (!core_as_timeout(end->method, limit, &spin.timeout) ||
	    !end->may_pop(end->self, end->method))
		return -1;
	ready = (int64_t)end->ready(end->self, most);
	if (ready)
		return ready;

	do {
		came = core_spin(&spin);
		if (came == CORE_SPIN_LATE)
			PyErr_Format(core_error_timeout, "%s: no record arrived in time",
				     end->method);
		if (came != CORE_SPIN_CAME || !end->may_pop(end->self, end->method))
			return -1;
		if (end->ended(end->self))
			return 0;
		ready = (int64_t)end->ready(end->self, most); /* unless another thread took it */
	} while (!ready);
	return ready;
}

static PyObject *take(const struct core_popping *end, int64_t count)
{
	PyObject *records = PyBytes_FromStringAndSize(NULL, count * (int64_t)end->nbytes);

	if (records)
		end->take(end->self, PyBytes_AsString(records), (uint64_t)count);
	return records;
}

PyObject *core_pop(const struct core_popping *end, CORE_PARAMETERS)
{
	static const char *const names[] = {"timeout", NULL};
	PyObject *arg[1];
	int64_t ready;

	if (!core_parse(end->method, CORE_ARGUMENTS, names, 0, arg))
		return NULL;
	ready = wait_for_records(end, 1, arg[0]);
	if (ready < 0)
		return NULL;
	return ready ? take(end, ready) : Py_NewRef(Py_None);
}

PyObject *core_pop_many(const struct core_popping *end, CORE_PARAMETERS)
{
	static const char *const names[] = {"limit", "timeout", NULL};
	Py_ssize_t limit;
	PyObject *arg[2];
	int64_t ready;

	if (!core_parse(end->method, CORE_ARGUMENTS, names, 0, arg))
		return NULL;
	limit = core_as_size(end->method, "limit", arg[0] == Py_None ? NULL : arg[0],
			     PY_SSIZE_T_MAX);
	if (limit < 0)
		return NULL;
	if (!limit)
		return PyErr_Format(PyExc_ValueError, "%s: limit must be 1 or more, not 0",
				    end->method);
	ready = wait_for_records(end, (uint64_t)limit, arg[1]);
	return ready < 0 ? NULL : take(end, ready);
}
