/* SPDX-License-Identifier: MIT */
/* Arrays with any strides, and their rows in a mapping or region. */
#ifndef GDRPY_STRIDED_H
#define GDRPY_STRIDED_H

#include "copy/rows.h"
#include "mapping.h"

/* A call's array, and where its rows lie in the mapping. */
struct core_strided {
	const char *method;
	Py_ssize_t pitch, offset;
	Py_buffer view;	   /* nothing to copy if its len is 0 */
	Py_ssize_t extent; /* bytes from the first row to the end of the last */
	struct core_rows rows;
};

/* Parse pitch and offset; false with an exception set. */
bool core_parse_strided(struct core_strided *call, PyObject *pitch, PyObject *offset);

/*
 * Check that the rows lie inside `room` bytes and do not overlap the array if that lies in the
 * mapping, which may be NULL; then describe them. False with an exception set.
 */
bool core_check_strided(struct core_strided *call, struct mapping *mapping, Py_ssize_t room);

/* Copy through an entered mapping, without the GIL if that takes long. */
void core_mapping_copy_strided(struct mapping *self, const struct core_strided *call,
			       bool to_write);

#endif
