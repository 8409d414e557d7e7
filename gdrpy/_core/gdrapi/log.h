/* SPDX-License-Identifier: MIT */
/* The log of libgdrapi on stderr, which GDRCOPY_ENABLE_LOGGING enables. */
#ifndef GDRAPI_LOG_H
#define GDRAPI_LOG_H

/* Numbered as GDRCOPY_LOG_LEVEL, the lowest level logged; other values mean CORE_LOG_ERROR. */
enum core_log_level {
	CORE_LOG_DEBUG = 1,
	CORE_LOG_INFO,
	CORE_LOG_WARNING,
	CORE_LOG_ERROR,
};

/* Nothing is logged before this call. */
void core_log_read_environment(void);

/* Log one line, which other threads' lines do not interrupt. */
void core_log(enum core_log_level level, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Log an error and return its errno, which is EINVAL for a NULL output argument. */
int core_refuse(int number, const char *format, ...) __attribute__((format(printf, 2, 3)));
int core_refuse_null(const char *call, const char *argument);

#endif
