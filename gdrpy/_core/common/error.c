/* SPDX-License-Identifier: MIT */
#include "common/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Append to the message, which is cut where it does not fit. */
static void append(struct gdr_error *error, const char *format, va_list arguments)
	__attribute__((format(printf, 2, 0)));
static void add(struct gdr_error *error, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

static void append(struct gdr_error *error, const char *format, va_list arguments)
{
	size_t used = strlen(error->message);

	vsnprintf(error->message + used, sizeof(error->message) - used, format, arguments);
}

static void add(struct gdr_error *error, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	append(error, format, arguments);
	va_end(arguments);
}

static void begin(struct gdr_error *error, enum gdr_failure failure, int number, uint32_t status)
{
	error->failure = failure;
	error->number = number;
	error->status = status;
	error->message[0] = '\0';
}

int gdr_fail(struct gdr_error *error, enum gdr_failure failure, int number, const char *format, ...)
{
	va_list arguments;

	begin(error, failure, number, 0);
	va_start(arguments, format);
	append(error, format, arguments);
	va_end(arguments);
	return -1;
}

static enum gdr_failure failure_of(int number)
{
	switch (number) {
	case ENOMEM:
	case ENOSPC:
		return GDR_FAILED_MEMORY;
	case EACCES:
	case EPERM:
		return GDR_FAILED_PERMISSION;
	default:
		return GDR_FAILED_CALL;
	}
}

int gdr_fail_call(struct gdr_error *error, int number, uint32_t status, const char *format, ...)
{
	va_list arguments;

	begin(error, failure_of(number), number, status);
	va_start(arguments, format);
	append(error, format, arguments);
	va_end(arguments);

	switch (error->failure) {
	case GDR_FAILED_MEMORY:
		add(error, ": no room left in the GPU's memory, its BAR1 or the address space: "
			   "close mappings, or map less");
		break;
	case GDR_FAILED_PERMISSION:
		add(error, ": %s; ask for access to the /dev/nvidia* nodes", strerror(number));
		break;
	default:
		add(error, ": %s", strerror(number));
		if (status)
			add(error, " (driver status %#x)", status);
	}
	return -1;
}
