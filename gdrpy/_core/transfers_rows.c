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
	struct gdr_dma_error error;
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
static bool write_rows(struct transfers *self, const struct gdr_strided *call, enum gdr_way way)
{
	struct gdr_copy copy;
	struct mapping *mapping;

	if (!call->view.len)
		return true;
	if (is_one_piece(call)) {
		copy = as_bytes(call, way);
		return gdr_transfers_write(self, &copy);
	}
	if (writes_by_dma(self, call, way))
		return by_dma(self, call, true);
	mapping = self->mapping;
	Py_INCREF((PyObject *)mapping);
	gdr_mapping_put_strided(mapping, call);
	Py_DECREF((PyObject *)mapping);
	return true;
}

static bool read_rows(struct transfers *self, const struct gdr_strided *call, enum gdr_way way)
{
	struct gdr_copy copy;
	struct mapping *mapping;

	if (!call->view.len)
		return true;
	if (is_one_piece(call)) {
		copy = as_bytes(call, way);
		return gdr_transfers_read(self, &copy);
	}
	if (reads_by_dma(self, call, way))
		return by_dma(self, call, false);
	mapping = self->mapping;
	Py_INCREF((PyObject *)mapping);
	gdr_mapping_get_strided(mapping, call);
	Py_DECREF((PyObject *)mapping);
	return true;
}

PyObject *gdr_transfers_write_strided(struct transfers *self, PyObject *const *args,
				      Py_ssize_t nargs, PyObject *kwnames)
{
	static const char *const names[] = {"data", "pitch", "offset", "via", NULL};
	struct gdr_strided call = {.method = "Region.write_strided"};
	enum gdr_way way;
	PyObject *arg[4];
	bool written;

	if (!gdr_parse(call.method, args, nargs, kwnames, names, 2, arg) ||
	    !gdr_parse_strided(&call, arg[1], arg[2]) ||
	    !gdr_parse_way(call.method, arg[3], &way) ||
	    PyObject_GetBuffer(arg[0], &call.view, PyBUF_STRIDES))
		return NULL;
	written = gdr_transfers_ready(self, call.method, true, way) &&
		  gdr_check_strided(&call, self->nbytes) && write_rows(self, &call, way);
	PyBuffer_Release(&call.view);
	if (!written)
		return NULL;
	Py_RETURN_NONE;
}

PyObject *gdr_transfers_readinto_strided(struct transfers *self, PyObject *const *args,
					 Py_ssize_t nargs, PyObject *kwnames)
{
	static const char *const names[] = {"buffer", "pitch", "offset", "via", NULL};
	struct gdr_strided call = {.method = "Region.readinto_strided"};
	enum gdr_way way;
	Py_ssize_t nbytes;
	PyObject *arg[4];
	bool read;

	if (!gdr_parse(call.method, args, nargs, kwnames, names, 2, arg) ||
	    !gdr_parse_strided(&call, arg[1], arg[2]) ||
	    !gdr_parse_way(call.method, arg[3], &way) ||
	    PyObject_GetBuffer(arg[0], &call.view, PyBUF_STRIDES | PyBUF_WRITABLE))
		return NULL;
	nbytes = call.view.len;
	read = gdr_transfers_ready(self, call.method, false, way) &&
	       gdr_check_strided(&call, self->nbytes) && read_rows(self, &call, way);
	PyBuffer_Release(&call.view);
	return read ? PyLong_FromSsize_t(nbytes) : NULL;
}
