/* SPDX-License-Identifier: MIT */
/* The types and functions of gdrpy._core._mapping, each in the file of its name. */
#ifndef GDRPY_MODULE_H
#define GDRPY_MODULE_H

#include "pyhelp.h"

extern PyType_Spec core_answer_spec, core_buffer_spec, core_channel_spec, core_reader_spec,
	core_descriptor_spec, core_flag_spec, core_inbox_spec, core_lease_spec, core_link_spec,
	core_mapping_spec, core_queue_spec, core_resource_spec, core_server_spec,
	core_transfers_spec, core_undo_spec, core_writer_spec;
extern PyTypeObject *core_buffer_type_object, *core_mapping_type_object, *core_channel_type_object,
	*core_descriptor_type_object, *core_inbox_type_object, *core_link_type_object;

/* Define core_TYPE_spec of a struct TYPE, from its TYPE_slots. */
#define CORE_TYPE(type, type_name, more_flags)                                                     \
	PyType_Spec core_##type##_spec = {                                                         \
		.name = "gdrpy._core._mapping." type_name,                                         \
		.basicsize = sizeof(struct type),                                                  \
		.flags = Py_TPFLAGS_DEFAULT | (more_flags),                                        \
		.slots = type##_slots,                                                             \
	}

/* Define the collector's functions of a struct TYPE, which has TYPE_clear(), and their slots. */
#define CORE_TRAVERSE(type, visits)                                                                \
	static int type##_traverse(struct type *self, visitproc visit, void *arg)                  \
	{                                                                                          \
		Py_VISIT(Py_TYPE((PyObject *)self));                                               \
		visits;                                                                            \
		return 0;                                                                          \
	}
#define CORE_DEALLOC(type)                                                                         \
	static void type##_dealloc(struct type *self)                                              \
	{                                                                                          \
		PyObject_GC_UnTrack(self);                                                         \
		type##_clear(self);                                                                \
		core_free_object(self);                                                            \
	}
/* clang-format off */
#define CORE_COLLECTED(type)                                                                       \
	{Py_tp_dealloc, type##_dealloc}, {Py_tp_traverse, type##_traverse}, {Py_tp_clear, type##_clear}
/* clang-format on */

/* An object that owns a private descriptor. On failure NULL, and the descriptor is closed. */
PyObject *core_descriptor_own(int fd);
PyObject *core_exchange(PyObject *module, PyObject *args);
PyObject *core_receive(PyObject *module, PyObject *args);

/* In alone.c: calls that no signal can interrupt. The first holds a lock. */
PyObject *core_call_alone(PyObject *lock, PyObject *function);
PyObject *core_alone(PyObject *module, PyObject *args);
PyObject *core_try_alone(PyObject *module, PyObject *args);
PyObject *core_run(PyObject *module, PyObject *args, PyObject *kwargs);

/* In dlpack.c. */
extern const char core_dlpack_doc[], core_take_dlpack_doc[];
PyObject *core_dlpack(PyObject *module, PyObject *args);
PyObject *core_take_dlpack(PyObject *module, PyObject *capsule);

/* In memfd.c; the last is Mapping._of_memfd(). */
PyObject *core_lend_private(PyObject *module, PyObject *descriptor);
PyObject *core_take_back_private(PyObject *module, PyObject *none);
PyObject *core_fixed_size(PyObject *module, PyObject *descriptor);
PyObject *core_duplicate_memfd(PyObject *module, PyObject *descriptor);
PyObject *core_map_memfd(PyObject *type, PyObject *args);

/* In transfers.c: open_dma(context). */
PyObject *core_open_dma(PyObject *module, PyObject *context);

#endif
