/* SPDX-License-Identifier: MIT */
/*
 * Chooses how a copy is made, and makes it.
 *
 * Stores and loads through the mapping start at once. DMA takes some microseconds to start, and
 * moves more bytes a second. The caller passes the sizes from which each is faster.
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

static unsigned int lanes_for(const struct transfers *self, Py_ssize_t nbytes)
{
	if (nbytes <= ONE_LANE_UP_TO)
		return 1;
	return nbytes < FOUR_LANES_UP_TO && self->limits.lanes > 4 ? 4 : self->limits.lanes;
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

static bool is_pinned(struct transfers *self, const struct core_copy *copy)
{
	return copy->nbytes > ASK_FROM &&
	       core_dma_reaches(self->dma, copy->host, (size_t)copy->nbytes);
}

/* The way to copy, and if that is DMA, whether the host memory is page-locked. */
static enum core_way choose(struct transfers *self, const struct core_copy *copy, bool to_write,
			    bool *pinned)
{
	const struct core_limits *limits = &self->limits;

	if (copy->way >= CORE_BY_MAPPING)
		return copy->way;
	if (!self->dma)
		return CORE_BY_MAPPING;
	if (copy->way == CORE_AUTOMATIC && self->mapping) {
		if (!to_write && copy->nbytes < limits->read_dma)
			return CORE_BY_MAPPING;
		if (to_write && copy->nbytes < limits->write_dma_pinned &&
		    copy->nbytes < limits->write_dma)
			return CORE_BY_MAPPING;
	}
	*pinned = is_pinned(self, copy);
	if (copy->way == CORE_BY_DMA || !self->mapping || !to_write)
		return CORE_BY_DMA;
	return copy->nbytes >= (*pinned ? limits->write_dma_pinned : limits->write_dma)
		       ? CORE_BY_DMA
		       : CORE_BY_MAPPING;
}

/* Copy by DMA, directly if `pinned`, else through staging; false with an error. */
static bool by_dma(struct transfers *self, const struct core_copy *copy, bool pinned, bool to_write,
		   struct core_error *error)
{
	unsigned int lanes = pinned ? 0 : lanes_for(self, copy->nbytes);
	uint64_t device = self->ptr + (uint64_t)copy->offset;
	struct core_dma *dma = self->dma; /* another thread may arm the object again */
	size_t nbytes = (size_t)copy->nbytes;
	bool done;

	if (!nbytes)
		return true;
	/* DMA must not overtake stores that are still in this CPU's buffers. */
	core_store_fence();
	self->running++;
	Py_BEGIN_ALLOW_THREADS;
	done = to_write ? core_dma_write(dma, lanes, device, copy->host, nbytes, error)
			: core_dma_read(dma, lanes, copy->host, device, nbytes, error);
	Py_END_ALLOW_THREADS;
	core_transfers_end(self);
	return done;
}

static bool by_engine(struct transfers *self, const struct core_copy *copy, bool to_write,
		      struct core_error *error)
{
	struct core_engine_memory *engine = self->engine;
	PyObject *capsule = Py_NewRef(self->engine_capsule); /* another thread may disarm */
	uint64_t offset = (uint64_t)copy->offset;
	size_t nbytes = (size_t)copy->nbytes;
	int ret = 0;

	/* The engine must not overtake stores that are still in this CPU's buffers. */
	core_store_fence();
	self->running++;
	Py_BEGIN_ALLOW_THREADS;
	if (nbytes)
		ret = to_write ? core_engine_write(engine, offset, copy->host, nbytes, error)
			       : core_engine_read(engine, copy->host, offset, nbytes, error);
	Py_END_ALLOW_THREADS;
	core_transfers_end(self);
	Py_DECREF(capsule);
	return !ret;
}

static void by_mapping(struct transfers *self, struct mapping *mapping,
		       const struct core_copy *copy, bool to_write)
{
	const struct core_limits *limits = &self->limits;
	Py_ssize_t nbytes = copy->nbytes;

	if (to_write)
		core_mapping_put(mapping, nbytes >= limits->write_threads ? limits->threads_to : 1,
				 copy->offset, copy->host, nbytes);
	else
		core_mapping_get(mapping, nbytes >= limits->read_threads ? limits->threads_from : 1,
				 copy->offset, copy->host, nbytes);
}

/*
 * Copy by the GPU. A failure is raised, unless the mapping serves as well: staging needs memory,
 * which may be short, and stores and loads need none.
 */
static bool by_gpu(struct transfers *self, const struct core_copy *copy, enum core_way way,
		   bool pinned, bool to_write, bool *try_mapping)
{
	struct core_error error;

	if (way == CORE_BY_ENGINE) {
		*try_mapping = false;
		return by_engine(self, copy, to_write, &error) || core_raise_failure(&error);
	}
	if (by_dma(self, copy, pinned, to_write, &error))
		return true;
	*try_mapping =
		*try_mapping && copy->way == CORE_AUTOMATIC && error.failure == CORE_FAILED_MEMORY;
	return !*try_mapping && core_raise_cuda(&error);
}

static bool copy_held(struct transfers *self, struct mapping *mapping, const struct core_copy *copy,
		      bool to_write)
{
	bool pinned = false, try_mapping = mapping;
	enum core_way way = choose(self, copy, to_write, &pinned);

	if (way != CORE_BY_MAPPING) {
		if (by_gpu(self, copy, way, pinned, to_write, &try_mapping))
			return true;
		if (!try_mapping || !core_mapping_usable(mapping, copy->method))
			return false;
	}
	if (!core_mapping_enter_checked(mapping, copy->method))
		return false;
	by_mapping(self, mapping, copy, to_write);
	core_mapping_leave(mapping);
	return true;
}

/* Hold the mapping, because another thread may disarm the object. */
bool core_transfers_copy(struct transfers *self, const struct core_copy *copy, bool to_write)
{
	struct mapping *mapping = self->mapping;
	bool done;

	Py_XINCREF((PyObject *)mapping);
	done = copy_held(self, mapping, copy, to_write);
	Py_XDECREF((PyObject *)mapping);
	return done;
}
