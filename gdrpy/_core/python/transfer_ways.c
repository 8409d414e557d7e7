/* SPDX-License-Identifier: MIT */
/*
 * Chooses how a copy is made, and makes it.
 *
 * Stores and loads through the mapping start at once. DMA by CUDA and by the copy engine takes some
 * microseconds to start, and moves more bytes a second. The caller passes the sizes from which each
 * is faster.
 */
#include "cuda/driver.h"
#include "transfers.h"

/*
 * Smaller copies are staged without a check for page-locked memory, which takes as long.
 */
#define ASK_FROM (4 << 10)

/* The sizes up to which one lane and four lanes are best: waking threads takes time. */
#define ONE_LANE_UP_TO (1 << 20)
#define FOUR_LANES_UP_TO (16 << 20)

/*
 * Making an engine takes some milliseconds. A region takes it when it has copied so many bytes that
 * it would have copied faster, with CUDA and without; each copy counts as COUNTED_LEAST at least.
 */
#define ENGINE_WITH_CUDA ((size_t)64 << 20)
#define ENGINE_ALONE ((size_t)4 << 20)
#define COUNTED_LEAST ((size_t)64 << 10)

unsigned int core_transfers_lanes(const struct transfers *self, Py_ssize_t nbytes)
{
	if (nbytes <= ONE_LANE_UP_TO)
		return 1;
	return nbytes < FOUR_LANES_UP_TO && self->lanes > 4 ? 4 : self->lanes;
}

bool core_raise_cuda(const struct core_error *error)
{
	PyObject *module = PyImport_ImportModule("gdrpy.cuda");
	PyObject *raised;

	if (module) {
		raised =
			PyObject_CallMethod(module, "check", "si", error->call, (int)error->status);
		Py_XDECREF(raised);
		Py_DECREF(module);
	}
	return false;
}

static bool is_pinned(struct transfers *self, const void *host, size_t nbytes)
{
	return nbytes > ASK_FROM && core_dma_reaches(self->dma, host, nbytes);
}

enum core_host core_transfers_look(struct transfers *self, Py_ssize_t cost, const char *host,
				   size_t nbytes, bool to_write)
{
	const struct core_limits *limits = to_write ? &self->to : &self->from;

	if (cost >= limits->registered && core_has_come(self->engine_again) &&
	    core_engine_has_registered(host, nbytes, to_write))
		return CORE_HOST_REGISTERED;
	if (self->dma && cost >= limits->dma_pinned && is_pinned(self, host, nbytes))
		return CORE_HOST_PINNED;
	return CORE_HOST_ORDINARY;
}

static enum core_host look(struct transfers *self, const struct core_copy *copy, bool to_write)
{
	if (copy->is_new)
		return CORE_HOST_ORDINARY;
	return core_transfers_look(self, copy->nbytes, copy->host, (size_t)copy->nbytes, to_write);
}

static bool wants_engine(struct transfers *self, const struct core_copy *copy, enum core_host host,
			 bool to_write)
{
	const struct core_limits *limits = to_write ? &self->to : &self->from;
	size_t nbytes = (size_t)copy->nbytes;

	if (copy->way != CORE_AUTOMATIC || self->engine || !core_has_come(self->engine_again))
		return false;
	if (host == CORE_HOST_REGISTERED)
		return true;
	if (host == CORE_HOST_PINNED || (self->mapping && copy->nbytes < limits->engine))
		return false;
	self->for_engine += nbytes < COUNTED_LEAST ? COUNTED_LEAST : nbytes;
	return self->for_engine >= (self->dma ? ENGINE_WITH_CUDA : ENGINE_ALONE);
}

bool core_transfers_try_engine(struct transfers *self, const struct core_copy *copy,
			       enum core_host host, bool to_write)
{
	PyObject *available;

	if (!wants_engine(self, copy, host, to_write))
		return true;
	available = PyObject_CallMethod((PyObject *)self, "_try_engine", "s", copy->method);
	if (!available)
		return false;
	Py_DECREF(available);
	if (!self->engine)
		core_transfers_avoid_engine(self, available == Py_False);
	return core_transfers_ready(self, copy->method, to_write, copy->way);
}

static enum core_way choose(struct transfers *self, const struct core_copy *copy,
			    enum core_host host, bool to_write)
{
	const struct core_limits *limits = to_write ? &self->to : &self->from;
	const Py_ssize_t nbytes = copy->nbytes;
	bool engine = core_transfers_has_engine(self);

	if (copy->way != CORE_AUTOMATIC)
		return copy->way;
	if (!core_transfers_has_view(self) || (engine && host == CORE_HOST_REGISTERED))
		return CORE_BY_ENGINE;
	if (host == CORE_HOST_PINNED)
		return CORE_BY_DMA;
	if (engine && (nbytes >= limits->engine || !self->mapping))
		return CORE_BY_ENGINE;
	if (self->mapping && (!self->dma || nbytes < limits->dma))
		return CORE_BY_MAPPING;
	return CORE_BY_DMA;
}

/* Copy by DMA, page-locked memory directly, other memory through staging; false with an error. */
static bool by_dma(struct transfers *self, const struct core_copy *copy, enum core_host host,
		   bool to_write, struct core_error *error)
{
	size_t nbytes = (size_t)copy->nbytes;
	bool asks = host != CORE_HOST_PINNED && !copy->is_new;
	bool pinned = asks ? is_pinned(self, copy->host, nbytes) : host == CORE_HOST_PINNED;
	unsigned int lanes = pinned ? 0 : core_transfers_lanes(self, copy->nbytes);
	uint64_t device = self->ptr + (uint64_t)copy->offset;
	struct core_dma *dma = self->dma; /* another thread may arm the object again */
	bool done;

	if (!nbytes)
		return true;
	/* DMA must not overtake stores that are still in this CPU's buffers. */
	core_store_fence();
	self->running++;
	Py_BEGIN_ALLOW_THREADS;
	done = core_dma_transfer(dma, lanes, device, copy->host, nbytes, to_write, error);
	Py_END_ALLOW_THREADS;
	core_transfers_end(self);
	return done;
}

static bool by_engine(struct transfers *self, const struct core_copy *copy, bool to_write,
		      struct core_error *error)
{
	struct core_use use = core_transfers_use_engine(self);
	int ret = 0;

	Py_BEGIN_ALLOW_THREADS;
	if (copy->nbytes)
		ret = core_engine_transfer(use.memory, (uint64_t)copy->offset, copy->host,
					   (size_t)copy->nbytes, to_write, error);
	Py_END_ALLOW_THREADS;
	core_transfers_end_use(self, &use);
	return !ret;
}

static void by_mapping(struct transfers *self, struct mapping *mapping,
		       const struct core_copy *copy, bool to_write)
{
	const struct core_limits *limits = to_write ? &self->to : &self->from;
	unsigned int threads = copy->nbytes >= limits->threads ? limits->several : 1;

	if (to_write)
		core_mapping_put(mapping, threads, copy->offset, copy->host, copy->nbytes);
	else
		core_mapping_get(mapping, threads, copy->offset, copy->host, copy->nbytes);
}

/*
 * Copy by the GPU. A failure is raised, unless another way serves: then *another is true. Staging
 * needs memory, which may be short, and an engine may be lost.
 */
static bool by_gpu(struct transfers *self, const struct core_copy *copy, enum core_way way,
		   enum core_host host, bool to_write, bool *another)
{
	struct core_error error;

	*another = copy->way == CORE_AUTOMATIC && core_transfers_has_view(self);
	if (way == CORE_BY_ENGINE) {
		if (by_engine(self, copy, to_write, &error))
			return true;
		if (*another)
			core_transfers_avoid_engine(self, error.failure == CORE_FAILED_UNAVAILABLE);
		return !*another && core_raise_failure(&error);
	}
	if (by_dma(self, copy, host, to_write, &error))
		return true;
	*another = *another && self->mapping && error.failure == CORE_FAILED_MEMORY;
	return !*another && core_raise_cuda(&error);
}

static bool copy_held(struct transfers *self, struct mapping *mapping, const struct core_copy *copy,
		      enum core_way way, enum core_host host, bool to_write)
{
	bool another;

	while (way != CORE_BY_MAPPING) {
		if (by_gpu(self, copy, way, host, to_write, &another))
			return true;
		/* Another thread may have closed the region meanwhile. */
		if (!another || !core_transfers_ready(self, copy->method, to_write, copy->way))
			return false;
		host = look(self, copy, to_write);
		way = way == CORE_BY_ENGINE ? choose(self, copy, host, to_write) : CORE_BY_MAPPING;
	}
	if (!core_mapping_enter_checked(mapping, copy->method))
		return false;
	by_mapping(self, mapping, copy, to_write);
	core_mapping_leave(mapping);
	return true;
}

bool core_transfers_copy(struct transfers *self, const struct core_copy *copy, bool to_write)
{
	const Py_ssize_t gpu = to_write ? self->to.gpu : self->from.gpu;
	enum core_host host = CORE_HOST_ORDINARY;
	enum core_way way = copy->way;
	struct mapping *mapping;
	bool done;

	if (way == CORE_AUTOMATIC && self->mapping && copy->nbytes < gpu) {
		way = CORE_BY_MAPPING;
	} else if (way == CORE_AUTOMATIC) {
		host = look(self, copy, to_write);
		if (!core_transfers_try_engine(self, copy, host, to_write))
			return false;
		way = choose(self, copy, host, to_write);
	}
	/* Hold the mapping, because another thread may disarm the object. */
	mapping = self->mapping;
	Py_XINCREF((PyObject *)mapping);
	done = copy_held(self, mapping, copy, way, host, to_write);
	Py_XDECREF((PyObject *)mapping);
	return done;
}
