/* SPDX-License-Identifier: MIT */
/* Region.write_strided() and Region.readinto_strided(), by the mapping or by DMA. */
#include "strided.h"
#include "transfers.h"

/* DMA from page-locked memory is quick if its rows are as long; it takes each by itself. */
#define DIRECT_ROW_MIN 1024

/* Where everything lies in one piece on both sides it is a copy of bytes. */
static bool is_one_piece(const struct gdr_strided *call)
{
	return call->rows.count == 1 && call->rows.run == call->rows.nbytes;
}

static struct gdr_copy as_bytes(const struct gdr_strided *call, enum gdr_way way)
{
	return (struct gdr_copy){call->method, way, call->offset, call->view.len, call->rows.first};
}

/* Whether DMA can take the rows from where they lie. */
static bool is_direct(struct transfers *self, const struct gdr_rows *rows)
{
	return gdr_dma_takes_rows(rows) &&
	       gdr_dma_reaches(self->dma, rows->first,
			       (rows->count - 1) * (size_t)rows->stride + rows->nbytes);
}

static bool by_dma(struct transfers *self, const struct gdr_strided *call, bool to_write)
{
	uint64_t device = self->ptr + (uint64_t)call->offset;
	bool direct = is_direct(self, &call->rows);
	struct gdr_dma *dma = self->dma;
	struct gdr_error error;
	bool done;

	/* DMA is not to overtake stores that still wait in this CPU. */
	gdr_store_fence();
	self->running++;
	Py_BEGIN_ALLOW_THREADS;
	done = to_write ? gdr_dma_write_rows(dma, device, &call->rows, direct, &error)
			: gdr_dma_read_rows(dma, &call->rows, device, direct, &error);
	Py_END_ALLOW_THREADS;
	self->running--;
	return done || gdr_raise_cuda(&error);
}

static bool writes_by_dma(struct transfers *self, const struct gdr_strided *call, enum gdr_way way)
{
	if (way == GDR_BY_DMA || !self->mapping)
		return true;
	return way == GDR_AUTOMATIC && self->dma &&
	       call->view.len >= self->limits.write_dma_pinned &&
	       call->rows.nbytes >= DIRECT_ROW_MIN && is_direct(self, &call->rows);
}

static bool reads_by_dma(struct transfers *self, const struct gdr_strided *call, enum gdr_way way)
{
	if (way == GDR_BY_DMA || !self->mapping)
		return true;
	return way == GDR_AUTOMATIC && self->dma &&
	       gdr_rows_read_cost(&call->rows) >= (size_t)self->limits.read_dma;
}

/* The mapping is held meanwhile: another thread may disarm the object. */
static bool copy_rows(struct transfers *self, const struct gdr_strided *call, enum gdr_way way,
		      bool to_write)
{
	struct gdr_copy copy;
	struct mapping *mapping;

	if (!call->view.len)
		return true;
	if (is_one_piece(call)) {
		copy = as_bytes(call, way);
		return gdr_transfers_copy(self, &copy, to_write);
	}
	if (to_write ? writes_by_dma(self, call, way) : reads_by_dma(self, call, way))
		return by_dma(self, call, to_write);
	mapping = self->mapping;
	if (!gdr_mapping_enter_checked(mapping, call->method))
		return false;
	Py_INCREF((PyObject *)mapping);
	if (to_write)
		gdr_mapping_put_strided(mapping, call);
	else
		gdr_mapping_get_strided(mapping, call);
	gdr_mapping_leave(mapping);
	Py_DECREF((PyObject *)mapping);
	return true;
}

/* (buffer, pitch, offset=0, via=None). The array's bytes; -1 with an exception set. */
static Py_ssize_t copy_array(struct transfers *self, const char *method, bool to_write,
			     PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
	const char *const names[] = {to_write ? "data" : "buffer", "pitch", "offset", "via", NULL};
	struct gdr_strided call = {.method = method};
	Py_ssize_t nbytes;
	enum gdr_way way;
	PyObject *arg[4];
	bool done;

	if (!gdr_parse(method, args, nargs, kwnames, names, 2, arg) ||
	    !gdr_parse_strided(&call, arg[1], arg[2]) || !gdr_parse_way(method, arg[3], &way) ||
	    !gdr_get_view(method, names[0], arg[0],
			  to_write ? PyBUF_STRIDES : PyBUF_STRIDES | PyBUF_WRITABLE, &call.view))
		return -1;
	nbytes = call.view.len;
	done = gdr_transfers_ready(self, method, to_write, way) &&
	       gdr_check_strided(&call, self->mapping, self->nbytes) &&
	       copy_rows(self, &call, way, to_write);
	PyBuffer_Release(&call.view);
	return done ? nbytes : -1;
}

PyObject *gdr_transfers_write_strided(struct transfers *self, PyObject *const *args,
				      Py_ssize_t nargs, PyObject *kwnames)
{
	if (copy_array(self, GDR_TRANSFERS_METHOD(self, "write_strided"), true, args, nargs,
		       kwnames) < 0)
		return NULL;
	Py_RETURN_NONE;
}

PyObject *gdr_transfers_readinto_strided(struct transfers *self, PyObject *const *args,
					 Py_ssize_t nargs, PyObject *kwnames)
{
	Py_ssize_t nbytes = copy_array(self, GDR_TRANSFERS_METHOD(self, "readinto_strided"), false,
				       args, nargs, kwnames);

	return nbytes < 0 ? NULL : PyLong_FromSsize_t(nbytes);
}
