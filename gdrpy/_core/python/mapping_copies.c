/* SPDX-License-Identifier: MIT */
/* A mapping's bytes and words: Mapping.write(), read(), readinto(), store() and load(). */
#include "copy/parallel.h"
#include "mapping.h"

bool core_mapping_range(struct mapping *self, const char *method, Py_ssize_t offset,
			Py_ssize_t nbytes)
{
	if (offset <= self->nbytes && nbytes <= self->nbytes - offset)
		return true;

	return core_raise(PyExc_ValueError,
			  "%s: offset %zd + %zd bytes lies outside the %zd-byte mapping", method,
			  offset, nbytes, self->nbytes);
}

bool core_mapping_refuse_overlap(const char *method, const char *name, Py_ssize_t offset,
				 Py_ssize_t extent)
{
	return core_raise(
		PyExc_ValueError,
		"%s: %s lies in the mapping itself and overlaps the %zd bytes at offset %zd: "
		"copy through other memory, such as a bytearray",
		method, name, extent, offset);
}

bool core_mapping_word(struct mapping *self, const char *method, Py_ssize_t offset,
		       Py_ssize_t width)
{
	if (width != 4 && width != 8)
		return core_raise(PyExc_ValueError, "%s: width must be 4 or 8 bytes, not %zd",
				  method, width);
	if (!core_mapping_range(self, method, offset, width))
		return false;
	if ((uintptr_t)(self->address + offset) % (uintptr_t)width)
		return core_raise(PyExc_ValueError,
				  "%s: offset %zd is not aligned to the %zd-byte word", method,
				  offset, width);
	return true;
}

void core_word_store(char *address, Py_ssize_t width, uint64_t value)
{
	if (width == 4)
		*(volatile uint32_t *)address = (uint32_t)value;
	else
		*(volatile uint64_t *)address = value;
}

uint64_t core_word_load(const char *address, Py_ssize_t width)
{
	return width == 4 ? *(const volatile uint32_t *)address
			  : *(const volatile uint64_t *)address;
}

uint64_t core_mapping_load_word(struct mapping *self, Py_ssize_t offset, Py_ssize_t width)
{
	uint64_t value = core_word_load(self->address + offset, width);

	/* Data read next must not be older than the word that announced it. */
	core_load_fence();
	return value;
}

void core_mapping_put(struct mapping *self, unsigned int threads, Py_ssize_t offset,
		      const void *data, Py_ssize_t nbytes)
{
	PyThreadState *thread = core_mapping_unlock(self, nbytes >= CORE_UNLOCKED_WRITE);

	if (thread)
		core_copy_to_by(threads, self->type, self->address + offset, data, (size_t)nbytes);
	else
		core_copy_to(self->type, self->address + offset, data, (size_t)nbytes);
	core_mapping_fence(self);
	core_mapping_relock(self, thread);
}

void core_mapping_get(struct mapping *self, unsigned int threads, Py_ssize_t offset, void *data,
		      Py_ssize_t nbytes)
{
	PyThreadState *thread = core_mapping_unlock(self, nbytes >= CORE_UNLOCKED_READ);

	if (thread)
		core_copy_from_by(threads, self->type, data, self->address + offset,
				  (size_t)nbytes);
	else
		core_copy_from(self->type, data, self->address + offset, (size_t)nbytes);
	core_mapping_relock(self, thread);
}

/* write() and readinto(): (buffer, offset=0). */
static inline PyObject *copy_buffer(struct mapping *self, const char *method, bool to_write,
				    CORE_PARAMETERS)
{
	const char *const names[] = {to_write ? "data" : "buffer", "offset", NULL};
	struct core_bytes bytes;
	Py_ssize_t offset;
	PyObject *arg[2];
	bool fits = false;

	if (!core_parse(method, CORE_ARGUMENTS, names, 1, arg))
		return NULL;
	offset = core_as_size(method, "offset", arg[1], 0);
	if (offset < 0 || (to_write && !core_mapping_writable(self, method)) ||
	    !core_get_bytes(method, names[0], arg[0], !to_write, &bytes))
		return NULL;
	if (core_mapping_enter(self, method)) {
		fits = core_mapping_range(self, method, offset, bytes.nbytes) &&
		       core_mapping_apart(self, method, names[0], offset, bytes.nbytes, bytes.data,
					  bytes.nbytes);
		if (fits && to_write)
			core_mapping_put(self, 1, offset, bytes.data, bytes.nbytes);
		else if (fits)
			core_mapping_get(self, 1, offset, bytes.data, bytes.nbytes);
		core_mapping_leave(self);
	}
	core_release_bytes(&bytes);
	return core_copied(fits, to_write, bytes.nbytes);
}

CORE_METHOD(core_mapping_write, mapping, copy_buffer, "Mapping.write", true)
CORE_METHOD(core_mapping_readinto, mapping, copy_buffer, "Mapping.readinto", false)

PyObject *core_mapping_read(struct mapping *self, CORE_PARAMETERS)
{
	static const char *const names[] = {"nbytes", "offset", NULL};
	static const char method[] = "Mapping.read";
	Py_ssize_t offset, nbytes;
	PyObject *arg[2], *bytes = NULL;

	if (!core_parse(method, CORE_ARGUMENTS, names, 0, arg))
		return NULL;
	offset = core_as_size(method, "offset", arg[1], 0);
	if (offset < 0 || !core_mapping_usable(self, method))
		return NULL;
	if (arg[0] == Py_None)
		arg[0] = NULL;
	nbytes = core_as_size(method, "nbytes", arg[0],
			      offset < self->nbytes ? self->nbytes - offset : 0);
	if (nbytes < 0 || !core_mapping_enter(self, method))
		return NULL;

	if (core_mapping_range(self, method, offset, nbytes))
		bytes = PyBytes_FromStringAndSize(NULL, nbytes);
	if (bytes)
		core_mapping_get(self, 1, offset, PyBytes_AsString(bytes), nbytes);
	core_mapping_leave(self);
	return bytes;
}

PyObject *core_mapping_store(struct mapping *self, CORE_PARAMETERS)
{
	static const char *const names[] = {"offset", "value", "width", NULL};
	static const char method[] = "Mapping.store";
	Py_ssize_t offset, width;
	PyObject *arg[3];
	uint64_t value;

	if (!core_parse(method, CORE_ARGUMENTS, names, 2, arg) ||
	    !core_parse_word(method, arg[0], arg[2], &offset, &width))
		return NULL;
	if (!core_mapping_writable(self, method) ||
	    !core_mapping_word(self, method, offset, width) ||
	    !core_as_word(method, arg[1], width, &value) || !core_mapping_enter(self, method))
		return NULL;

	core_word_store(self->address + offset, width, value);
	core_mapping_fence(self);
	core_mapping_leave(self);
	Py_RETURN_NONE;
}

PyObject *core_mapping_load(struct mapping *self, CORE_PARAMETERS)
{
	static const char *const names[] = {"offset", "width", NULL};
	static const char method[] = "Mapping.load";
	Py_ssize_t offset, width;
	PyObject *arg[2];
	uint64_t value;
	bool fits;

	if (!core_parse(method, CORE_ARGUMENTS, names, 1, arg) ||
	    !core_parse_word(method, arg[0], arg[1], &offset, &width))
		return NULL;
	if (!core_mapping_enter(self, method))
		return NULL;

	fits = core_mapping_word(self, method, offset, width);
	if (fits)
		value = core_mapping_load_word(self, offset, width);
	core_mapping_leave(self);
	return fits ? PyLong_FromUnsignedLongLong(value) : NULL;
}
