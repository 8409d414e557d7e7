/* SPDX-License-Identifier: MIT */
/* Region.write_strided() and Region.readinto_strided(), by the mapping, DMA or the engine. */
#include "copy/parallel.h"
#include "copy/row_blocks.h"
#include "strided.h"
#include "transfers.h"

/* The GPU writes rows at least this long at full speed; it copies each separately. */
#define GPU_ROW_MIN 1024

/* Rows that are contiguous on both sides are copied as bytes. */
static bool is_one_piece(const struct core_strided *call)
{
	return call->rows.count == 1 && call->rows.run == call->rows.nbytes;
}

static struct core_copy as_bytes(const struct core_strided *call, enum core_way way)
{
	return (struct core_copy){
		.method = call->method,
		.way = way,
		.offset = call->offset,
		.nbytes = call->view.len,
		.host = call->rows.first,
	};
}

/* Whether DMA can copy the rows without staging. */
static bool is_direct(struct transfers *self, const struct core_rows *rows)
{
	return core_rows_are_lines(rows) &&
	       core_dma_reaches(self->dma, rows->first, core_rows_extent(rows));
}

static bool by_dma(struct transfers *self, const struct core_strided *call, bool to_write)
{
	uint64_t device = self->ptr + (uint64_t)call->offset;
	bool direct = is_direct(self, &call->rows);
	struct core_dma *dma = self->dma;
	struct core_error error;
	bool done;

	/* DMA must not overtake stores that are still in this CPU's buffers. */
	core_store_fence();
	self->running++;
	Py_BEGIN_ALLOW_THREADS;
	done = core_dma_transfer_rows(dma, device, &call->rows, direct, to_write, &error);
	Py_END_ALLOW_THREADS;
	core_transfers_end(self);
	return done || core_raise_cuda(&error);
}

struct engine_job {
	struct core_engine_memory *memory;
	uint64_t offset;
	const struct core_rows *rows;
	size_t share; /* rows of a part */
	bool to_write, failed;
	struct core_error *error; /* of the first failure */
};

/* Whether the engine copies the rows from where they are. Then one thread is enough. */
static bool is_registered(const struct core_rows *rows, bool to_write)
{
	return core_rows_are_lines(rows) &&
	       core_engine_has_registered(rows->first, core_rows_extent(rows), to_write);
}

static void run_part(void *context, unsigned int part)
{
	struct engine_job *job = context;
	size_t first = part * job->share, left = job->rows->count - first;
	struct core_rows rows = *job->rows;
	struct core_error error;

	rows.first += (ptrdiff_t)first * rows.stride;
	rows.count = left < job->share ? left : job->share;
	if (core_engine_transfer_rows(job->memory, job->offset + first * rows.pitch, &rows,
				      job->to_write, &error) &&
	    !__atomic_exchange_n(&job->failed, true, __ATOMIC_RELAXED))
		*job->error = error;
}

static bool by_engine(struct transfers *self, const struct core_strided *call, bool to_write,
		      struct core_error *error)
{
	struct core_use use = core_transfers_use_engine(self);
	const unsigned int lanes = is_registered(&call->rows, to_write)
					   ? 1
					   : core_transfers_lanes(self, call->view.len);
	const size_t count = call->rows.count;
	struct engine_job job = {
		.memory = use.memory,
		.offset = (uint64_t)call->offset,
		.rows = &call->rows,
		.share = (count + lanes - 1) / lanes,
		.to_write = to_write,
		.error = error,
	};

	Py_BEGIN_ALLOW_THREADS;
	core_parallel((unsigned int)((count + job.share - 1) / job.share), run_part, &job);
	Py_END_ALLOW_THREADS;
	core_transfers_end_use(self, &use);
	return !job.failed;
}

/*
 * Read by the engine, or write rows that it writes at full speed, by several threads; page-locked
 * rows are left to DMA. *done is false if another way must serve.
 */
static bool try_engine(struct transfers *self, const struct core_strided *call, bool to_write,
		       bool *done)
{
	const struct core_limits *limits = to_write ? &self->to : &self->from;
	const struct core_rows *rows = &call->rows;
	const struct core_copy copy = {.method = call->method,
				       .nbytes = to_write ? call->view.len
							  : (Py_ssize_t)core_rows_read_cost(rows)};
	enum core_host host = CORE_HOST_ORDINARY;
	struct core_error error;

	*done = false;
	if (to_write && (rows->count == 1 || rows->nbytes < GPU_ROW_MIN))
		return true;
	if (core_rows_are_lines(rows))
		host = core_transfers_look(self, copy.nbytes, rows->first, core_rows_extent(rows),
					   to_write);
	if (host == CORE_HOST_PINNED)
		return true;
	if (!core_transfers_try_engine(self, &copy, host, to_write))
		return false;
	if (core_transfers_has_engine(self) &&
	    (host == CORE_HOST_REGISTERED || copy.nbytes >= limits->engine)) {
		*done = by_engine(self, call, to_write, &error);
		if (!*done)
			core_transfers_avoid_engine(self, error.failure == CORE_FAILED_UNAVAILABLE);
	}
	/* Another thread may have closed the region meanwhile. */
	return *done || core_transfers_ready(self, call->method, to_write, CORE_AUTOMATIC);
}

static bool writes_by_dma(struct transfers *self, const struct core_strided *call,
			  enum core_way way)
{
	if (way == CORE_BY_DMA || !self->mapping)
		return true;
	return way == CORE_AUTOMATIC && self->dma && call->view.len >= self->to.dma_pinned &&
	       call->rows.nbytes >= GPU_ROW_MIN && is_direct(self, &call->rows);
}

static bool reads_by_dma(struct transfers *self, const struct core_strided *call, enum core_way way)
{
	if (way == CORE_BY_DMA || !self->mapping)
		return true;
	return way == CORE_AUTOMATIC && self->dma &&
	       core_rows_read_cost(&call->rows) >= (size_t)self->from.dma;
}

/* Hold the mapping, because another thread may disarm the object. */
static bool copy_rows(struct transfers *self, const struct core_strided *call, enum core_way way,
		      bool to_write)
{
	struct core_copy copy;
	struct core_error error;
	struct mapping *mapping;
	bool done = false;

	if (!call->view.len)
		return true;
	if (is_one_piece(call)) {
		copy = as_bytes(call, way);
		return core_transfers_copy(self, &copy, to_write);
	}
	if (way == CORE_BY_ENGINE || !core_transfers_has_view(self))
		return by_engine(self, call, to_write, &error) || core_raise_failure(&error);
	if (way == CORE_AUTOMATIC && (!try_engine(self, call, to_write, &done) || done))
		return done;
	if (to_write ? writes_by_dma(self, call, way) : reads_by_dma(self, call, way))
		return by_dma(self, call, to_write);
	mapping = self->mapping;
	if (!core_mapping_enter_checked(mapping, call->method))
		return false;
	Py_INCREF((PyObject *)mapping);
	core_mapping_copy_strided(mapping, call, to_write);
	core_mapping_leave(mapping);
	Py_DECREF((PyObject *)mapping);
	return true;
}

/* (buffer, pitch, offset=0, via=None). */
static PyObject *copy_array(struct transfers *self, const char *method, bool to_write,
			    CORE_PARAMETERS)
{
	const char *const names[] = {to_write ? "data" : "buffer", "pitch", "offset", "via", NULL};
	struct core_strided call = {.method = method};
	Py_ssize_t nbytes;
	enum core_way way;
	PyObject *arg[4];
	bool done;

	if (!core_parse(method, CORE_ARGUMENTS, names, 2, arg) ||
	    !core_parse_strided(&call, arg[1], arg[2]) || !core_parse_way(method, arg[3], &way) ||
	    !core_get_view(method, names[0], arg[0],
			   to_write ? PyBUF_STRIDES : PyBUF_STRIDES | PyBUF_WRITABLE, &call.view))
		return NULL;
	nbytes = call.view.len;
	done = core_transfers_ready(self, method, to_write, way) &&
	       core_check_strided(&call, self->mapping, self->nbytes) &&
	       copy_rows(self, &call, way, to_write);
	PyBuffer_Release(&call.view);
	return core_copied(done, to_write, nbytes);
}

CORE_METHOD(core_transfers_write_strided, transfers, copy_array,
	    CORE_TRANSFERS_METHOD(self, "write_strided"), true)
CORE_METHOD(core_transfers_readinto_strided, transfers, copy_array,
	    CORE_TRANSFERS_METHOD(self, "readinto_strided"), false)
