/* SPDX-License-Identifier: MIT */
/* Region.write_many() and Region.readinto_many(): many pieces, by the engine all at once. */
#include "copy/rows.h"
#include "many.h"
#include "transfers.h"

/* From this size on, a piece is worth a fence and a choice of its own. */
#define LARGE_PIECE ((size_t)64 << 10)

struct many {
	const char *method;
	enum core_way way;
	bool to_write;
};

/* Move the pieces of at least so many bytes to the front; returns their number. */
static Py_ssize_t sort_out(struct core_piece *list, Py_ssize_t count, size_t least)
{
	Py_ssize_t large = 0;

	for (Py_ssize_t i = 0; i < count; i++)
		if (list[i].nbytes >= least) {
			struct core_piece piece = list[i];

			list[i] = list[large];
			list[large++] = piece;
		}
	return large;
}

static bool by_engine(struct transfers *self, const struct core_piece *list, Py_ssize_t count,
		      bool to_write, struct core_error *error)
{
	struct core_use use = core_transfers_use_engine(self);
	int ret;

	Py_BEGIN_ALLOW_THREADS;
	ret = core_engine_transfer_many(use.memory, list, (size_t)count, to_write, error);
	Py_END_ALLOW_THREADS;
	core_transfers_end_use(self, &use);
	return !ret;
}

/* How the GPU can reach all pieces, and how many contiguous bytes take as long to copy. */
static enum core_host look(struct transfers *self, const struct core_piece *list, Py_ssize_t count,
			   bool to_write, Py_ssize_t *cost)
{
	char *first = NULL, *end = NULL;

	*cost = to_write ? 0 : (count - 1) * CORE_READ_TRIP;
	for (Py_ssize_t i = 0; i < count; i++) {
		char *data = list[i].data;

		if (!list[i].nbytes) /* it may lie anywhere */
			continue;
		*cost += (Py_ssize_t)list[i].nbytes;
		if (!end || data < first)
			first = data;
		if (data + list[i].nbytes > end)
			end = data + list[i].nbytes;
	}
	return core_transfers_look(self, *cost, first, (size_t)(end - first), to_write);
}

/*
 * Copy by the engine where that is faster; returns how many of the first pieces it copied. -1 with
 * an exception set.
 */
static Py_ssize_t try_engine(struct transfers *self, const struct many *call,
			     const struct core_piece *list, Py_ssize_t count)
{
	const struct core_limits *limits = call->to_write ? &self->to : &self->from;
	struct core_copy copy = {.method = call->method};
	struct core_error error;
	enum core_host host;
	bool done = false;

	if (!count)
		return 0;
	host = look(self, list, count, call->to_write, &copy.nbytes);
	/* Long page-locked pieces are left to DMA. */
	if (host == CORE_HOST_PINNED && copy.nbytes / count >= limits->dma_pinned)
		return 0;
	if (!core_transfers_try_engine(self, &copy, host, call->to_write))
		return -1;
	if (core_transfers_has_engine(self) &&
	    (host == CORE_HOST_REGISTERED || copy.nbytes >= limits->engine || !self->mapping)) {
		done = by_engine(self, list, count, call->to_write, &error);
		if (!done)
			core_transfers_avoid_engine(self, error.failure == CORE_FAILED_UNAVAILABLE);
	}
	return done ? count : 0;
}

/* Copy pieces one by one, each by the faster way. */
static bool copy_each(struct transfers *self, const struct many *call,
		      const struct core_piece *list, Py_ssize_t count)
{
	for (Py_ssize_t i = 0; i < count; i++) {
		const struct core_copy copy = {
			.method = call->method,
			.way = call->way,
			.offset = (Py_ssize_t)list[i].offset,
			.nbytes = (Py_ssize_t)list[i].nbytes,
			.host = list[i].data,
		};

		/* Another thread may have closed the region meanwhile. */
		if (!core_transfers_ready(self, call->method, call->to_write, call->way) ||
		    !core_transfers_copy(self, &copy, call->to_write))
			return false;
	}
	return true;
}

static bool store_each(struct transfers *self, const struct many *call,
		       const struct core_piece *list, Py_ssize_t count)
{
	struct mapping *mapping;
	size_t total = 0;

	if (!count)
		return true;
	if (!core_transfers_ready(self, call->method, true, call->way))
		return false;
	mapping = self->mapping;
	if (!core_mapping_enter_checked(mapping, call->method))
		return false;
	for (Py_ssize_t i = 0; i < count; i++)
		total += list[i].nbytes;
	Py_INCREF((PyObject *)mapping);
	core_mapping_put_many(mapping, list, count, total >= CORE_UNLOCKED_WRITE);
	core_mapping_leave(mapping);
	Py_DECREF((PyObject *)mapping);
	return true;
}

static bool copy_pieces(struct transfers *self, const struct many *call, struct core_piece *list,
			Py_ssize_t count)
{
	const bool stores = call->to_write && self->mapping && call->way != CORE_BY_DMA;
	struct core_error error;
	Py_ssize_t done = 0, large;

	if (call->way == CORE_BY_ENGINE || !core_transfers_has_view(self))
		return by_engine(self, list, count, call->to_write, &error) ||
		       core_raise_failure(&error);
	if (call->way == CORE_AUTOMATIC)
		done = try_engine(self, call, list,
				  stores ? sort_out(list, count, CORE_PIECE_COST) : count);
	if (done < 0)
		return false;
	list += done;
	count -= done;
	large = stores ? sort_out(list, count, LARGE_PIECE) : count;
	return copy_each(self, call, list, large) &&
	       store_each(self, call, list + large, count - large);
}

static bool check_pieces(struct transfers *self, const struct many *call,
			 struct core_pieces *pieces)
{
	const Py_ssize_t outside = core_measure_pieces(pieces, (size_t)self->nbytes);
	char label[CORE_LABEL_BYTES];

	if (outside < pieces->count) {
		const struct core_piece *piece = &pieces->list[outside];
		const struct core_copy copy = {
			.method = core_piece_label(label, call->method, outside),
			.offset = (Py_ssize_t)piece->offset,
			.nbytes = (Py_ssize_t)piece->nbytes,
		};

		return core_transfers_range(self, &copy);
	}
	return !self->mapping || core_pieces_apart(pieces, call->method, self->mapping);
}

/* (pieces, via=None). */
static PyObject *copy_many(struct transfers *self, const char *method, bool to_write,
			   CORE_PARAMETERS)
{
	static const char *const names[] = {"pieces", "via", NULL};
	struct many call = {.method = method, .to_write = to_write};
	struct core_pieces pieces;
	PyObject *arg[2];
	bool done;

	if (!core_parse(method, CORE_ARGUMENTS, names, 1, arg) ||
	    !core_parse_way(method, arg[1], &call.way) ||
	    !core_take_pieces(&pieces, method, arg[0], !to_write))
		return NULL;
	done = core_transfers_ready(self, method, to_write, call.way) &&
	       check_pieces(self, &call, &pieces) &&
	       copy_pieces(self, &call, pieces.list, pieces.count);
	core_end_pieces(&pieces);
	return core_copied(done, to_write, (Py_ssize_t)pieces.total);
}

CORE_METHOD(core_transfers_write_many, transfers, copy_many,
	    CORE_TRANSFERS_METHOD(self, "write_many"), true)
CORE_METHOD(core_transfers_readinto_many, transfers, copy_many,
	    CORE_TRANSFERS_METHOD(self, "readinto_many"), false)
