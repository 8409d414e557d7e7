/* SPDX-License-Identifier: MIT */
#include "log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#define NOTHING (GDR_LOG_ERROR + 1)

static _Atomic int threshold = NOTHING;

void gdr_log_read_environment(void)
{
	const char *level = getenv("GDRCOPY_LOG_LEVEL");
	int wanted = NOTHING;

	if (getenv("GDRCOPY_ENABLE_LOGGING"))
		wanted = level ? atoi(level) : GDR_LOG_ERROR;
	atomic_store_explicit(&threshold, wanted, memory_order_relaxed);
}

static void tell(enum gdr_log_level level, const char *format, va_list arguments)
{
	char line[4096];

	if ((int)level < atomic_load_explicit(&threshold, memory_order_relaxed))
		return;
	vsnprintf(line, sizeof(line), format, arguments);
	fprintf(stderr, "libgdrapi: %s\n", line);
}

void gdr_log(enum gdr_log_level level, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	tell(level, format, arguments);
	va_end(arguments);
}

int gdr_refuse(int number, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	tell(GDR_LOG_ERROR, format, arguments);
	va_end(arguments);
	return number;
}

int gdr_refuse_null(const char *call, const char *argument)
{
	return gdr_refuse(EINVAL, "%s: %s is NULL: pass where to put the answer", call, argument);
}
