/* SPDX-License-Identifier: MIT */
/* Arrays of any strides, and where their rows lie in a mapping or region. */
#ifndef GDRPY_STRIDED_H
#define GDRPY_STRIDED_H

#include "copy/rows.h"
#include "mapping.h"

/* What a call is about: the array that it was given, and where its rows lie. */
struct core_strided {
	const char *method;
	Py_ssize_t pitch, offset;
	Py_buffer view;	   /* nothing to copy if its len is 0 */
	Py_ssize_t extent; /* bytes from the first row to the end of the last */
	struct core_rows rows;
};

/* Numbers from the arguments; false with an exception set. */
bool core_parse_strided(struct core_strided *call, PyObject *pitch, PyObject *offset);

/*
 * That the rows of the view lie inside `room` bytes, and apart from the array if that lies in the
 * mapping (NULL: there is none); describes them. False with an exception set.
 */
bool core_check_strided(struct core_strided *call, struct mapping *mapping, Py_ssize_t room);

/* By the mapping, which was entered; without the GIL if that takes long. */
void core_mapping_put_strided(struct mapping *self, const struct core_strided *call);
void core_mapping_get_strided(struct mapping *self, const struct core_strided *call);

#endif
