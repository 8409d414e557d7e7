/* SPDX-License-Identifier: MIT */
/*
 * Mapping.write_many(): many small copies in one call, with one fence.
 *
 * Everything is checked before the first store. Python code (iterators, __index__, exporters of
 * buffers) runs before the last check of the mapping.
 */
#include "many.h"

/* The most bytes copied while other Python threads wait: some tens of microseconds. */
#define LONGEST_LOCKED (1 << 20)

static const char method[] = "Mapping.write_many";

static bool check_pieces(struct mapping *self, struct core_pieces *pieces)
{
	Py_ssize_t outside = core_measure_pieces(pieces, (size_t)self->nbytes);
	char label[CORE_LABEL_BYTES];

	if (outside < pieces->count)
		return core_mapping_range(self, core_piece_label(label, method, outside),
					  (Py_ssize_t)pieces->list[outside].offset,
					  (Py_ssize_t)pieces->list[outside].nbytes);
	return core_pieces_apart(pieces, method, self);
}

#ifndef Py_GIL_DISABLED
/*
 * The fastest way for the most frequent argument, a list of plain pairs. No other code runs, so
 * they need not be kept alive. False, with nothing stored, for other arguments and for errors.
 */
static bool put_plain_list(struct mapping *self, PyObject *list)
{
	Py_ssize_t count = PyList_Size(list);
	size_t room = (size_t)self->nbytes, total = 0;
	struct core_piece few[CORE_FEW_PIECES], *pieces = few;
	Py_ssize_t i;

	if (count > CORE_FEW_PIECES)
		pieces = PyMem_Malloc((size_t)count * sizeof(*pieces));
	if (!pieces)
		return false;
	for (i = 0; i < count; i++) {
		struct core_piece *piece = &pieces[i];

		if (!core_take_plain_pair(core_list_item(list, i), piece) || piece->offset > room ||
		    piece->nbytes > room - piece->offset)
			break;
		total += piece->nbytes;
		if (total >= LONGEST_LOCKED)
			break;
	}
	if (i == count)
		core_mapping_put_many(self, pieces, count, false);
	if (pieces != few)
		PyMem_Free(pieces);
	return i == count;
}
#endif

PyObject *core_mapping_write_many(struct mapping *self, PyObject *iterable)
{
	struct core_pieces pieces;
	bool good;

	if (!core_mapping_writable(self, method))
		return NULL;
#ifndef Py_GIL_DISABLED
	if (PyList_CheckExact(iterable) && put_plain_list(self, iterable))
		Py_RETURN_NONE;
#endif
	if (!core_take_pieces(&pieces, method, iterable, false))
		return NULL;
	good = core_mapping_enter(self, method);
	if (good) {
		good = check_pieces(self, &pieces);
		if (good)
			core_mapping_put_many(self, pieces.list, pieces.count,
					      pieces.total >= CORE_UNLOCKED_WRITE);
		core_mapping_leave(self);
	}
	core_end_pieces(&pieces);
	if (!good)
		return NULL;
	Py_RETURN_NONE;
}
