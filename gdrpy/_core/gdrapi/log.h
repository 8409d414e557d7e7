/* SPDX-License-Identifier: MIT */
/* What libgdrapi tells on stderr, where GDRCOPY_ENABLE_LOGGING wants it to. */
#ifndef GDRAPI_LOG_H
#define GDRAPI_LOG_H

/* The numbers of GDRCOPY_LOG_LEVEL, which is the least that is told; another is CORE_LOG_ERROR. */
enum core_log_level {
	CORE_LOG_DEBUG = 1,
	CORE_LOG_INFO,
	CORE_LOG_WARNING,
	CORE_LOG_ERROR,
};

/* Nothing is told before this was called. */
void core_log_read_environment(void);

/* One line, whole also among those of other threads. */
void core_log(enum core_log_level level, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Tell an error, and return its errno; EINVAL for an argument that an answer was to go to. */
int core_refuse(int number, const char *format, ...) __attribute__((format(printf, 2, 3)));
int core_refuse_null(const char *call, const char *argument);

#endif
