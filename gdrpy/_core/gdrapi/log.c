/* SPDX-License-Identifier: MIT */
#include "log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#define NOTHING (CORE_LOG_ERROR + 1)

static _Atomic int threshold = NOTHING;

static int wanted_level(void)
{
	const char *level = getenv("GDRCOPY_LOG_LEVEL");

	if (level && level[0] >= '0' + CORE_LOG_DEBUG && level[0] <= '0' + CORE_LOG_ERROR &&
	    !level[1])
		return level[0] - '0';
	return CORE_LOG_ERROR;
}

void core_log_read_environment(void)
{
	int wanted = getenv("GDRCOPY_ENABLE_LOGGING") ? wanted_level() : NOTHING;

	atomic_store_explicit(&threshold, wanted, memory_order_relaxed);
}

static void tell(enum core_log_level level, const char *format, va_list arguments)
{
	char line[4096];

	if ((int)level < atomic_load_explicit(&threshold, memory_order_relaxed))
		return;
	vsnprintf(line, sizeof(line), format, arguments);
	fprintf(stderr, "libgdrapi: %s\n", line);
}

void core_log(enum core_log_level level, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	tell(level, format, arguments);
	va_end(arguments);
}

int core_refuse(int number, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	tell(CORE_LOG_ERROR, format, arguments);
	va_end(arguments);
	return number;
}

int core_refuse_null(const char *call, const char *argument)
{
	return core_refuse(EINVAL, "%s: %s is NULL: pass an address for the result", call,
			   argument);
}
