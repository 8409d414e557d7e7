/* SPDX-License-Identifier: MIT */
/* The extension module gdrpy._core._mapping. */
#include "module.h"
#include "channel.h"
#include "channel/inbox.h"
#include "channel/requests.h"
#include "layout.h"
#include "mapping.h"
#include "transfers.h"

#include <pthread.h>

PyTypeObject *core_mapping_type_object;

static void count_fork(void)
{
	core_fork_generation++;
}

static PyObject *fork_generation(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
	return PyLong_FromUnsignedLong(core_fork_generation);
}

static bool import_objects(void)
{
	const struct {
		const char *module, *name;
		PyObject **where;
	} objects[] = {
		{"gdrpy.errors", "Closed", &core_error_closed},
		{"gdrpy.errors", "Forked", &core_error_forked},
		{"gdrpy.errors", "MissingView", &core_error_missing_view},
		{"gdrpy.errors", "ReadOnly", &core_error_readonly},
		{"gdrpy.errors", "Revoked", &core_error_revoked},
		{"gdrpy.errors", "Timeout", &core_error_timeout},
		{"_thread", "RLock", &core_make_lock},
	};

	for (size_t i = 0; i < sizeof(objects) / sizeof(objects[0]); i++) {
		PyObject *module = PyImport_ImportModule(objects[i].module);

		*objects[i].where = module ? PyObject_GetAttrString(module, objects[i].name) : NULL;
		Py_XDECREF(module);
		if (!*objects[i].where)
			return false;
	}
	return true;
}

static bool intern_names(void)
{
#define CORE_INTERN(name, text) (core_names.name = PyUnicode_InternFromString(text)) &&
	return CORE_NAMES(CORE_INTERN) true;
}

static PyTypeObject *add_type(PyObject *module, PyType_Spec *spec)
{
	PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);

	if (!type || PyModule_AddType(module, (PyTypeObject *)type))
		return NULL;
	return (PyTypeObject *)type;
}

static PyMethodDef functions[] = {
	{"fork_generation", fork_generation, METH_NOARGS,
	 "fork_generation()\n--\n\nHow many forks separate this process from the first import."},
	{"dlpack", core_dlpack, METH_VARARGS, core_dlpack_doc},
	{"take_dlpack", core_take_dlpack, METH_O, core_take_dlpack_doc},
	{"open_dma", core_open_dma, METH_O,
	 "open_dma(context)\n--\n\nThe DMA engine of a CUcontext's device, as a capsule."},
	{"engine_reach", core_engine_reach, METH_VARARGS,
	 "engine_reach(fd, nbytes, gpu, blocks, /)\n--\n\n"
	 "GPU memory for the copy engine without CUDA, as a capsule: an export of nbytes bytes; or "
	 "if\nfd is -1 blocks on a GPU, each (client, object, offset, nbytes)."},
	{"engine_register", core_engine_register_buffer, METH_O,
	 "engine_register(buffer, /)\n--\n\nA capsule: while it lives, the copy engine copies the "
	 "buffer without staging."},
	{"engine_status", core_engine_status, METH_O,
	 "engine_status(gpu, /)\n--\n\nDescribe the copy engine of a GPU, (domain, bus, slot) "
	 "or None for the first. Raises Error."},
	{"fixed_size", core_fixed_size, METH_O,
	 "fixed_size(fd)\n--\n\nSize of a memory file that cannot be resized; 0 for any other."},
	{"duplicate_memfd", core_duplicate_memfd, METH_O,
	 "duplicate_memfd(fd)\n--\n\nA private duplicate of a memory file that cannot be resized, "
	 "and "
	 "its size; None for any other."},
	{"lend_private", core_lend_private, METH_O,
	 "lend_private(fd)\n--\n\nLet children that this thread forks keep a private descriptor."},
	{"take_back_private", core_take_back_private, METH_NOARGS,
	 "take_back_private()\n--\n\nEnd all of this thread's lend_private() calls."},
	{"alone", core_alone, METH_VARARGS,
	 "alone(lock, function, /, *args)\n--\n\nCall a function with a lock held, which is "
	 "released even after an exception."},
	{"try_alone", core_try_alone, METH_VARARGS,
	 "try_alone(lock, function, /, *args)\n--\n\nLike alone(), but returns False if the lock "
	 "is taken."},
	{"run", (PyCFunction)(void (*)(void))core_run, METH_VARARGS | METH_KEYWORDS,
	 "run(function, /, *args, **kwargs)\n--\n\n"
	 "Call a coroutine function whose coroutine never suspends, and return its result."},
	{"exchange", core_exchange, METH_VARARGS,
	 "exchange(sock, data, limit, max_fds, /)\n--\n\n"
	 "Send a packet, and receive one like receive(). Raises OSError: ECONNRESET if the "
	 "peer\nhas not read the packet and never will."},
	{"receive", core_receive, METH_VARARGS,
	 "receive(sock, limit, max_fds, /)\n--\n\n"
	 "One packet: its bytes, its Descriptors (None for one lost for lack of "
	 "memory),\nrecvmsg's flags. Raises OSError."},
	{NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
	PyModuleDef_HEAD_INIT,
	.m_name = "gdrpy._core._mapping",
	.m_doc = "The types of the hot path, such as Mapping and Flag, and DLPack capsules.",
	.m_size = -1,
	.m_methods = functions,
};

static bool add_contents(PyObject *module)
{
	return (core_mapping_type_object = add_type(module, &core_mapping_spec)) &&
	       (core_descriptor_type_object = add_type(module, &core_descriptor_spec)) &&
	       (core_channel_type_object = add_type(module, &core_channel_spec)) &&
	       (core_inbox_type_object = add_type(module, &core_inbox_spec)) &&
	       (core_link_type_object = add_type(module, &core_link_spec)) &&
	       add_type(module, &core_answer_spec) && add_type(module, &core_writer_spec) &&
	       add_type(module, &core_reader_spec) && add_type(module, &core_server_spec) &&
	       add_type(module, &core_flag_spec) &&
	       (core_transfers_type_object = add_type(module, &core_transfers_spec)) &&
	       (core_buffer_type_object = add_type(module, &core_buffer_spec)) &&
	       add_type(module, &core_lease_spec) && add_type(module, &core_queue_spec) &&
	       add_type(module, &core_resource_spec) && add_type(module, &core_undo_spec) &&
	       /* Bytes of GPU and of host memory that rings take besides their records, and that a
		  slot takes for a byte of its record. */
	       !PyModule_AddIntConstant(module, "CHANNEL_NBYTES", CORE_RING_RECORDS) &&
	       !PyModule_AddIntConstant(module, "CHANNEL_HOST_NBYTES", CORE_RING_HOST_NBYTES) &&
	       !PyModule_AddIntConstant(module, "INBOX_NBYTES", CORE_INBOX_NBYTES) &&
	       !PyModule_AddIntConstant(module, "INBOX_HOST_NBYTES", CORE_INBOX_SLOTS) &&
	       !PyModule_AddIntConstant(module, "LINK_NBYTES", CORE_LINK_NBYTES) &&
	       !PyModule_AddIntConstant(module, "LINK_HOST_NBYTES", CORE_LINK_ANSWERS) &&
	       !PyModule_AddIntConstant(module, "SLOT_FACTOR", CORE_SLOT_FACTOR);
}

PyMODINIT_FUNC PyInit__mapping(void);

PyMODINIT_FUNC PyInit__mapping(void)
{
	PyObject *module;

	if (!import_objects() || !intern_names() || !core_find_layouts())
		return NULL;
	module = core_create_module(&definition);
	if (module && !add_contents(module))
		Py_CLEAR(module);
	if (module && pthread_atfork(NULL, NULL, count_fork)) {
		Py_CLEAR(module);
		PyErr_NoMemory();
	}
	return module;
}
