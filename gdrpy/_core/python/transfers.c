/* SPDX-License-Identifier: MIT */
/*
 * gdrpy._core._mapping.Transfers: the copies of a region.
 *
 * The object is not armed before the first copy, nor after a change of its permissions. A copy then
 * calls its Python side, which arms it or raises.
 */
#include "transfers.h"

#include <structmember.h>
#include <sys/mman.h>

#define DMA_CAPSULE "gdrpy.dma"

/* New memory of at least two huge pages is made of them: page faults would cost more than DMA. */
#define HUGE_PAGE (2 << 20)

bool core_parse_way(const char *method, PyObject *via, enum core_way *way)
{
	*way = CORE_AUTOMATIC;
	if (!via || via == Py_None)
		return true;
	if (via == core_names.engine) { /* as literals are */
		*way = CORE_BY_ENGINE;
		return true;
	}
	if (PyUnicode_Check(via)) {
		if (!PyUnicode_CompareWithASCIIString(via, "mapping"))
			*way = CORE_BY_MAPPING;
		else if (!PyUnicode_CompareWithASCIIString(via, "dma"))
			*way = CORE_BY_DMA;
		else if (!PyUnicode_CompareWithASCIIString(via, "engine"))
			*way = CORE_BY_ENGINE;
	}
	if (*way == CORE_AUTOMATIC)
		PyErr_Format(PyExc_ValueError,
			     "%s: via must be 'mapping', 'dma', 'engine' or None, not %R", method,
			     via);
	return *way != CORE_AUTOMATIC;
}

static inline bool is_armed(struct transfers *self, bool to_write)
{
	return self->armed && (self->writable || !to_write) &&
	       self->generation == core_fork_generation;
}

/* Have the engine reach the memory: it raises, or self->engine is set. */
static bool reach(struct transfers *self, const char *method)
{
	PyObject *done = PyObject_CallMethod((PyObject *)self, "_prepare_engine", "s", method);

	Py_XDECREF(done);
	return done;
}

static bool arm(struct transfers *self, const char *method, bool to_write)
{
	PyObject *done = PyObject_CallMethod((PyObject *)self, "_prepare", "sO", method,
					     to_write ? Py_True : Py_False);

	Py_XDECREF(done);
	return done;
}

bool core_transfers_ready(struct transfers *self, const char *method, bool to_write,
			  enum core_way way)
{
	/* Another thread may close or seal the region before a call returns. */
	for (;;) {
		if (!is_armed(self, to_write)) {
			if (!arm(self, method, to_write))
				return false;
		} else if ((way == CORE_BY_ENGINE ||
			    (way == CORE_AUTOMATIC && !core_transfers_has_view(self))) &&
			   !self->engine) {
			if (!reach(self, method))
				return false;
		} else {
			break;
		}
	}
	if (self->mapping && !(to_write ? core_mapping_writable(self->mapping, method)
					: core_mapping_usable(self->mapping, method)))
		return false;
	if (way == CORE_BY_MAPPING && !self->mapping)
		return core_raise(
			core_error_missing_view,
			"%s: via='mapping' needs a CPU view, but the region was opened with "
			"cpu=False",
			method);
	if (way == CORE_BY_DMA && !self->dma)
		return core_raise(
			core_error_missing_view,
			"%s: via='dma' needs a GPU view, which is missing: this is host "
			"memory, was "
			"opened with gpu=False, or is a pin, which does not keep the address",
			method);
	return true;
}

bool core_transfers_range(struct transfers *self, const struct core_copy *copy)
{
	if (copy->offset <= self->nbytes && copy->nbytes <= self->nbytes - copy->offset)
		return true;
	return core_raise(PyExc_ValueError,
			  "%s: offset %zd + %zd bytes lies outside the %zd bytes there are",
			  copy->method, copy->offset, copy->nbytes, self->nbytes);
}

/*
 * Have the Python side copy an array of a GPU. The bytes copied; -1 with an exception set, -2 for
 * an object of another kind.
 */
static Py_ssize_t copy_array(struct transfers *self, const struct core_copy *copy, PyObject *array,
			     PyObject *via, bool to_write)
{
	PyObject *copied = PyObject_CallMethod((PyObject *)self, "_copy_array", "sOnOO",
					       copy->method, array, copy->offset,
					       via ? via : Py_None, to_write ? Py_True : Py_False);
	Py_ssize_t nbytes = -2;

	if (copied != Py_None)
		nbytes = copied ? PyLong_AsSsize_t(copied) : -1;
	Py_XDECREF(copied);
	return nbytes;
}

/* Copy bytes of another region by the engine; false with an exception set. */
static bool copy_region(struct transfers *self, const struct core_copy *copy,
			struct transfers *other, Py_ssize_t start, bool to_write)
{
	const struct core_copy there = {copy->method, .offset = start, .nbytes = copy->nbytes};
	bool ready, copied = false;

	CORE_BEGIN_BOTH_ALONE(self, other);
	/* Making one ready may run Python, and another thread close or seal the other meanwhile. */
	do {
		ready = core_transfers_ready(other, copy->method, !to_write, CORE_BY_ENGINE) &&
			core_transfers_ready(self, copy->method, to_write, CORE_BY_ENGINE);
	} while (ready && !(is_armed(other, !to_write) && other->engine));
	if (ready && core_transfers_range(self, copy) && core_transfers_range(other, &there))
		copied = core_transfers_between(self, other, start, copy, to_write);
	CORE_END_BOTH_ALONE();
	return copied;
}

static PyObject *transfers_copy_by_engine(struct transfers *self, PyObject *args)
{
	struct core_copy copy = {.way = CORE_BY_ENGINE};
	PyObject *other;
	Py_ssize_t start;
	int to_write;

	if (!PyArg_ParseTuple(args, "sO!nnnp:_copy_by_engine", &copy.method,
			      core_transfers_type_object, &other, &copy.offset, &start,
			      &copy.nbytes, &to_write) ||
	    !copy_region(self, &copy, (struct transfers *)other, start, to_write))
		return NULL;
	Py_RETURN_NONE;
}

/* Whether an object is a region, pin or array of ours that need not be copied through the CPU. */
static bool is_of_gpu(PyObject *object, enum core_way way)
{
	return (way == CORE_AUTOMATIC || way == CORE_BY_ENGINE) &&
	       PyObject_TypeCheck(object, core_buffer_type_object);
}

/* write() and readinto(): (buffer, offset=0, via=None). */
static PyObject *copy_buffer(struct transfers *self, const char *method, bool to_write,
			     CORE_PARAMETERS)
{
	const char *const names[] = {to_write ? "data" : "buffer", "offset", "via", NULL};
	struct core_copy copy = {.method = method};
	struct core_bytes bytes;
	Py_ssize_t copied = -2;
	PyObject *arg[3];
	bool done;

	if (!core_parse(method, CORE_ARGUMENTS, names, 1, arg))
		return NULL;
	copy.offset = core_as_size(method, "offset", arg[1], 0);
	if (copy.offset < 0 || !core_parse_way(method, arg[2], &copy.way))
		return NULL;
	if (!PyBytes_CheckExact(arg[0]) && !PyByteArray_CheckExact(arg[0]) &&
	    (!PyObject_CheckBuffer(arg[0]) || is_of_gpu(arg[0], copy.way)))
		copied = copy_array(self, &copy, arg[0], arg[2], to_write);
	if (copied != -2)
		return core_copied(copied >= 0, to_write, copied);
	if (!core_get_bytes(method, names[0], arg[0], !to_write, &bytes))
		return NULL;
	copy.host = bytes.data;
	copy.nbytes = bytes.nbytes;
	done = core_transfers_ready(self, method, to_write, copy.way) &&
	       core_transfers_range(self, &copy) &&
	       (!self->mapping || core_mapping_apart(self->mapping, method, names[0], copy.offset,
						     copy.nbytes, copy.host, copy.nbytes)) &&
	       core_transfers_copy(self, &copy, to_write);
	core_release_bytes(&bytes);
	return core_copied(done, to_write, copy.nbytes);
}

/* A new bytes object, whose content is not filled in yet. */
static PyObject *fresh_bytes(Py_ssize_t nbytes)
{
	PyObject *bytes = PyBytes_FromStringAndSize(NULL, nbytes);
	uintptr_t begin, end;

	if (bytes && nbytes >= 2 * HUGE_PAGE) {
		begin = ((uintptr_t)PyBytes_AsString(bytes) + HUGE_PAGE - 1) & -HUGE_PAGE;
		end = ((uintptr_t)PyBytes_AsString(bytes) + (size_t)nbytes) & -HUGE_PAGE;
		(void)madvise((void *)begin, end - begin, MADV_HUGEPAGE);
	}
	return bytes;
}

static PyObject *transfers_read(struct transfers *self, CORE_PARAMETERS)
{
	static const char *const names[] = {"nbytes", "offset", "via", NULL};
	struct core_copy copy = {.method = CORE_TRANSFERS_METHOD(self, "read"), .is_new = true};
	PyObject *arg[3], *bytes;

	if (!core_parse(copy.method, CORE_ARGUMENTS, names, 0, arg))
		return NULL;
	copy.offset = core_as_size(copy.method, "offset", arg[1], 0);
	if (copy.offset < 0 || !core_parse_way(copy.method, arg[2], &copy.way))
		return NULL;
	if (arg[0] && arg[0] != Py_None) {
		copy.nbytes = core_as_size(copy.method, "nbytes", arg[0], 0);
		if (copy.nbytes < 0)
			return NULL;
	}
	if (!core_transfers_ready(self, copy.method, false, copy.way))
		return NULL;
	if (!arg[0] || arg[0] == Py_None)
		copy.nbytes = copy.offset < self->nbytes ? self->nbytes - copy.offset : 0;
	if (!core_transfers_range(self, &copy))
		return NULL;

	bytes = fresh_bytes(copy.nbytes);
	if (!bytes)
		return NULL;
	copy.host = PyBytes_AsString(bytes);
	if (!core_transfers_copy(self, &copy, false))
		Py_CLEAR(bytes);
	return bytes;
}

static void forget_views(struct transfers *self)
{
	self->armed = self->writable = false;
	self->dma = NULL;
	self->engine = NULL;
	Py_CLEAR(self->mapping);
	Py_CLEAR(self->capsule);
	Py_CLEAR(self->engine_capsule);
}

static Py_ssize_t least(Py_ssize_t one, Py_ssize_t other)
{
	return one < other ? one : other;
}

static struct core_limits with_least(struct core_limits limits)
{
	limits.gpu = least(least(limits.dma, limits.dma_pinned),
			   least(limits.engine, limits.registered));
	return limits;
}

static PyObject *transfers_arm(struct transfers *self, void *args)
{
	PyObject *mapping, *capsule, *engine_capsule = NULL;
	struct core_engine_memory *engine = NULL;
	unsigned long long ptr;
	struct core_limits to, from;
	struct core_dma *dma = NULL;
	unsigned int lanes;
	Py_ssize_t nbytes;
	int writable;

	if (!PyArg_ParseTuple(args, "OOKnp(nnnnnnnnnnIII):_arm", &mapping, &capsule, &ptr, &nbytes,
			      &writable, &to.threads, &to.dma, &to.dma_pinned, &to.engine,
			      &to.registered, &from.threads, &from.dma, &from.dma_pinned,
			      &from.engine, &from.registered, &to.several, &from.several, &lanes))
		return NULL;
	if (mapping != Py_None && !PyObject_TypeCheck(mapping, core_mapping_type_object))
		return PyErr_Format(PyExc_TypeError, "_arm: %R is not a Mapping", mapping);
	if (capsule != Py_None) {
		dma = PyCapsule_GetPointer(capsule, DMA_CAPSULE);
		if (!dma)
			return NULL;
	}
	if (self->engine && self->generation == core_fork_generation) {
		engine = self->engine;
		engine_capsule = Py_NewRef(self->engine_capsule);
	}
	forget_views(self);
	self->engine = engine;
	self->engine_capsule = engine_capsule;
	if (mapping != Py_None)
		self->mapping = (struct mapping *)Py_NewRef(mapping);
	self->capsule = Py_NewRef(capsule);
	self->dma = dma;
	self->ptr = ptr;
	self->nbytes = nbytes;
	self->to = with_least(to);
	self->from = with_least(from);
	self->lanes = lanes;
	self->generation = core_fork_generation;
	self->armed = true;
	self->writable = writable;
	Py_RETURN_NONE;
}

static PyObject *transfers_arm_engine(struct transfers *self, void *argument)
{
	PyObject *capsule = argument, *before = self->engine_capsule;
	void *engine = PyCapsule_GetPointer(capsule, core_engine_capsule);

	if (!engine)
		return NULL;
	self->engine = engine;
	self->engine_capsule = Py_NewRef(capsule);
	Py_XDECREF(before);
	Py_RETURN_NONE;
}

static PyObject *transfers_disarm(struct transfers *self, void *Py_UNUSED(unused))
{
	forget_views(self);
	Py_RETURN_NONE;
}

void core_transfers_end(struct transfers *self)
{
	if (!--self->running)
		Py_CLEAR(self->keep);
}

static PyObject *transfers_keep(struct transfers *self, void *object)
{
	PyObject *kept = self->keep;

	if (self->running) {
		self->keep = Py_NewRef((PyObject *)object);
		Py_XDECREF(kept);
	}
	Py_RETURN_NONE;
}

CORE_METHOD_ALONE(transfers_write, transfers, copy_buffer, CORE_TRANSFERS_METHOD(self, "write"),
		  true)
CORE_METHOD_ALONE(transfers_readinto, transfers, copy_buffer,
		  CORE_TRANSFERS_METHOD(self, "readinto"), false)
CORE_METHOD_ALONE(transfers_read_alone, transfers, transfers_read)
CORE_METHOD_ALONE(transfers_write_strided, transfers, core_transfers_write_strided)
CORE_METHOD_ALONE(transfers_readinto_strided, transfers, core_transfers_readinto_strided)
CORE_METHOD_ALONE(transfers_write_many, transfers, core_transfers_write_many)
CORE_METHOD_ALONE(transfers_readinto_many, transfers, core_transfers_readinto_many)
CORE_ALONE(transfers_arm, transfers)
CORE_ALONE(transfers_arm_engine, transfers)
CORE_ALONE(core_transfers_fill, transfers)
CORE_ALONE(transfers_disarm, transfers)
CORE_ALONE(transfers_keep, transfers)

static int transfers_clear(struct transfers *self)
{
	forget_views(self);
	Py_CLEAR(self->keep);
	return 0;
}

CORE_TRAVERSE(transfers, Py_VISIT(self->mapping))
CORE_DEALLOC(transfers)

static PyMethodDef transfers_methods[] = {
	{"write", CORE_FASTCALL(transfers_write),
	 "write(data, offset=0, via=None)\n--\n\n"
	 "Copy bytes into the region, by CPU stores, by several threads from a few hundred KiB\n"
	 "on, or by DMA.\n\n"
	 "Args:\n"
	 "    data: A contiguous buffer, or a contiguous array of any library, such as a torch\n"
	 "        tensor, on the host or on a GPU. The bytes of another region on the same GPU\n"
	 "        stay on it.\n"
	 "    offset: The byte of the region that the first one goes to.\n"
	 "    via: 'mapping', 'dma' (by CUDA) or 'engine' (by the GPU's copy engine without CUDA)\n"
	 "        forces a way; None takes the faster one for the size.\n\n"
	 "On return the bytes are on their way to the GPU, ahead of anything written later.\n"
	 "Raises ValueError outside the region, and for bytes of region.cpu that overlap those\n"
	 "written; ReadOnly, Closed, MissingView, CudaError; for via='engine'\n"
	 "BackendUnavailable, with the reason."},
	{"read", CORE_FASTCALL(transfers_read_alone),
	 "read(nbytes=None, offset=0, via=None)\n--\n\n"
	 "Copy bytes out of the region, by CPU loads up to a few KiB, else by DMA.\n\n"
	 "Args:\n"
	 "    nbytes: How many bytes; None is all up to the end.\n"
	 "    offset: The first byte.\n"
	 "    via: As for write()."},
	{"readinto", CORE_FASTCALL(transfers_readinto),
	 "readinto(buffer, offset=0, via=None)\n--\n\n"
	 "Fill a buffer from the region; returns its length in bytes.\n\n"
	 "Args:\n"
	 "    buffer: A writable contiguous buffer, or such an array as write() takes.\n"
	 "    offset: The first byte.\n"
	 "    via: As for write().\n\n"
	 "DMA is fastest into page-locked memory (Region.mirror, or CUDA's)."},
	{"write_many", CORE_FASTCALL(transfers_write_many),
	 "write_many(pieces, via=None)\n--\n\n"
	 "Copy many buffers, each to its own offset: together by the copy engine, where that is\n"
	 "faster. Otherwise those under 64 KiB are stored with one fence, and each larger one\n"
	 "goes the faster way for its size.\n\n"
	 "Args:\n"
	 "    pieces: An iterable of pairs of an offset in bytes and a contiguous buffer or host\n"
	 "        array. Bytes objects are fastest.\n"
	 "    via: As for write().\n\n"
	 "All are checked before the first byte is written. If pieces overlap, either one may\n"
	 "remain. Raises as write() does, naming the piece; data from region.cpu must not lie\n"
	 "between the first and the last byte written. TypeError if a piece is not a pair."},
	{"readinto_many", CORE_FASTCALL(transfers_readinto_many),
	 "readinto_many(pieces, via=None)\n--\n\n"
	 "Fill many buffers, each from its own offset; returns their bytes together. The copy\n"
	 "engine reads all of them at once, as soon as loads would take several bus round "
	 "trips.\n\n"
	 "Args:\n"
	 "    pieces: An iterable of pairs of an offset in bytes and a writable contiguous buffer\n"
	 "        or host array. No two buffers may overlap.\n"
	 "    via: As for write().\n\n"
	 "All are checked before the first byte is read. Raises as write_many() does."},
	{"write_strided", CORE_FASTCALL(transfers_write_strided),
	 "write_strided(data, pitch, offset=0, via=None)\n--\n\n"
	 "Copy row i of an array to byte offset + i * pitch, for every i, like\n"
	 "Mapping.write_strided(): by the GPU from large rows, where that is faster, or if\n"
	 "there is no CPU view.\n\n"
	 "Args:\n"
	 "    data: The array.\n"
	 "    pitch: The bytes from one row's beginning to the next one's, at least a row's.\n"
	 "    offset: The byte of the region at which the first row begins.\n"
	 "    via: As for write()."},
	{"readinto_strided", CORE_FASTCALL(transfers_readinto_strided),
	 "readinto_strided(buffer, pitch, offset=0, via=None)\n--\n\n"
	 "Fill row i of a writable array from byte offset + i * pitch, for every i; returns the\n"
	 "array's size in bytes. By CPU loads up to a few KiB, else by the GPU.\n\n"
	 "Args:\n"
	 "    buffer: The array.\n"
	 "    pitch: The bytes from one row's beginning to the next one's, at least a row's.\n"
	 "    offset: The byte of the region at which the first row begins.\n"
	 "    via: As for write()."},
	{"_arm", (PyCFunction)transfers_arm_alone, METH_VARARGS, NULL},
	{"_arm_engine", (PyCFunction)transfers_arm_engine_alone, METH_O, NULL},
	{"_copy_by_engine", (PyCFunction)transfers_copy_by_engine, METH_VARARGS,
	 "_copy_by_engine(method, other, offset, start, nbytes, to_write, /)\n--\n\n"
	 "Copy bytes between `offset` and byte `start` of another region or pin."},
	{"_fill_by_engine", (PyCFunction)core_transfers_fill_alone, METH_VARARGS,
	 "_fill_by_engine(method, value, offset, nbytes, /)\n--\n\nSet bytes inside the region."},
	{"_disarm", (PyCFunction)transfers_disarm_alone, METH_NOARGS, NULL},
	{"_keep", (PyCFunction)transfers_keep_alone, METH_O,
	 "_keep(object, /)\n--\n\nKeep an object until the copies by the GPU in progress are "
	 "done."},
	{NULL, NULL, 0, NULL},
};

static PyMemberDef transfers_members[] = {
	{"_running", T_PYSSIZET, offsetof(struct transfers, running), READONLY,
	 "Copies by the GPU in progress."},
	{"_reached", T_PYSSIZET, offsetof(struct transfers, engine), READONLY,
	 "Not 0 once an engine has reached the memory."},
	{"_pin", T_BOOL, offsetof(struct transfers, pin), 0, "Whether it is a Pin."},
	{NULL, 0, 0, 0, NULL},
};

static PyType_Slot transfers_slots[] = {
	{Py_tp_doc, "The copies of a region. See gdrpy.Region."},
	CORE_COLLECTED(transfers),
	{Py_tp_methods, transfers_methods},
	{Py_tp_members, transfers_members},
	{0, NULL},
};

CORE_TYPE(transfers, "Transfers", Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC);

PyObject *core_open_dma(PyObject *Py_UNUSED(module), PyObject *context)
{
	struct core_dma *dma;
	void *handle = PyLong_AsVoidPtr(context);

	if (PyErr_Occurred())
		return NULL;
	dma = core_dma_open(handle);
	if (!dma) {
		PyErr_SetString(PyExc_RuntimeError,
				"open_dma: this process has loaded no complete CUDA driver");
		return NULL;
	}
	/* Kept until the process ends, as the context is. */
	return PyCapsule_New(dma, DMA_CAPSULE, NULL);
}
