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

/* Whether to copy by DMA, and if so, whether the host memory is page-locked. */
static bool goes_by_dma(struct transfers *self, const struct core_copy *copy, bool to_write,
			bool *pinned)
{
	const struct core_limits *limits = &self->limits;

	if (copy->way == CORE_BY_MAPPING || !self->dma)
		return false;
	if (copy->way == CORE_AUTOMATIC && self->mapping) {
		if (!to_write && copy->nbytes < limits->read_dma)
			return false;
		if (to_write && copy->nbytes < limits->write_dma_pinned &&
		    copy->nbytes < limits->write_dma)
			return false;
	}
	*pinned = is_pinned(self, copy);
	if (copy->way == CORE_BY_DMA || !self->mapping || !to_write)
		return true;
	return copy->nbytes >= (*pinned ? limits->write_dma_pinned : limits->write_dma);
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

static bool copy_held(struct transfers *self, struct mapping *mapping, const struct core_copy *copy,
		      bool to_write)
{
	struct core_error error;
	bool pinned;

	if (goes_by_dma(self, copy, to_write, &pinned)) {
		if (by_dma(self, copy, pinned, to_write, &error))
			return true;
		/* Staging needs memory, which may be short; stores and loads need none. */
		if (error.failure != CORE_FAILED_MEMORY || copy->way != CORE_AUTOMATIC || !mapping)
			return core_raise_cuda(&error);
		if (!core_mapping_usable(mapping, copy->method))
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
