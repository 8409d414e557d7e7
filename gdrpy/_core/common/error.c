/* SPDX-License-Identifier: MIT */
#include "common/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static void begin(struct core_error *error, enum core_failure failure, int number, uint32_t status)
{
	error->failure = failure;
	error->number = number;
	error->status = status;
	error->result = NULL;
	error->call[0] = '\0';
	error->purpose[0] = '\0';
}

int core_fail(struct core_error *error, enum core_failure failure, int number, const char *format,
	      ...)
{
	char message[sizeof(error->message)];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(message, sizeof(message), format, arguments);
	va_end(arguments);
	begin(error, failure, number, 0);
	strcpy(error->message, message);
	return -1;
}

int core_fail_malloc(struct core_error *error)
{
	return core_fail(error, CORE_FAILED_MEMORY, ENOMEM, "this process is out of memory");
}

static enum core_failure failure_of(int number)
{
	switch (number) {
	case ENOMEM:
	case ENOSPC:
		return CORE_FAILED_MEMORY;
	case EACCES:
	case EPERM:
		return CORE_FAILED_PERMISSION;
	default:
		return CORE_FAILED_CALL;
	}
}

int core_fail_call(struct core_error *error, int number, uint32_t status, const char *format, ...)
{
	char call[sizeof(error->call)], meaning[256];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(call, sizeof(call), format, arguments);
	va_end(arguments);
	begin(error, failure_of(number), number, status);
	strcpy(error->call, call);

	switch (error->failure) {
	case CORE_FAILED_MEMORY:
		snprintf(meaning, sizeof(meaning),
			 "no room left in the GPU's memory, its BAR1 or the address space: close "
			 "mappings, or map less");
		break;
	case CORE_FAILED_PERMISSION:
		snprintf(meaning, sizeof(meaning), "%s; ask for access to the /dev/nvidia* nodes",
			 strerror(number));
		break;
	default:
		snprintf(meaning, sizeof(meaning), status ? "%s (driver status %#x)" : "%s",
			 strerror(number), status);
	}
	snprintf(error->message, sizeof(error->message), "%s: %s", call, meaning);
	return -1;
}

int core_explain(struct core_error *error, const char *format, ...)
{
	size_t ahead;
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(error->purpose, sizeof(error->purpose), format, arguments);
	va_end(arguments);
	ahead = strlen(error->purpose) + strlen(": ");
	memmove(error->message + ahead, error->message, sizeof(error->message) - ahead - 1);
	error->message[sizeof(error->message) - 1] = '\0';
	memcpy(error->message, error->purpose, ahead - 2);
	memcpy(error->message + ahead - 2, ": ", 2);
	return -1;
}
