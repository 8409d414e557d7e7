/* SPDX-License-Identifier: MIT */
/* Errors: fields for programs, and a message with the remedy for people. */
#ifndef GDRPY_ERROR_H
#define GDRPY_ERROR_H

#include <stddef.h>
#include <stdint.h>

enum core_failure {
	CORE_FAILED_CALL = 1,	 /* a call to the kernel or the NVIDIA driver */
	CORE_FAILED_CUDA,	 /* a CUDA call */
	CORE_FAILED_MEMORY,	 /* no GPU memory, BAR1, quota or process memory left */
	CORE_FAILED_PERMISSION,	 /* to open a node or to write */
	CORE_FAILED_UNAVAILABLE, /* this backend, on this machine or for this memory */
	CORE_FAILED_HANDLE,	 /* the pointer or descriptor passed in is not usable */
	CORE_FAILED_SIZE,	 /* the range runs past its allocation */
	CORE_FAILED_REVOKED,	 /* the GPU memory was freed */
};

struct core_error {
	enum core_failure failure;
	int number;	    /* errno, always set */
	uint32_t status;    /* RM status or CUresult; 0 if unknown */
	const char *result; /* the name of a CUresult, else NULL */
	char call[128];	    /* the call that failed, or empty */
	char purpose[96];   /* text from core_explain(), or empty */
	char message[1024]; /* all of the above, and the remedy */
};

/* All of these return -1. The first two fill in *error; their arguments may point into it. */
int core_fail(struct core_error *error, enum core_failure failure, int number, const char *format,
	      ...) __attribute__((format(printf, 4, 5)));

/*
 * Report a call that failed with an errno and perhaps a driver status. Only this function derives
 * the failure from the errno. The message names the call, the errno's meaning and, for memory and
 * permissions, the remedy.
 */
int core_fail_call(struct core_error *error, int number, uint32_t status, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

/* Report that malloc() failed: the host is out of memory, not the GPU. Returns -1. */
int core_fail_malloc(struct core_error *error);

/* The same for functions that return a pointer. */
#define core_fail_null(...) (core_fail(__VA_ARGS__), NULL)
#define core_fail_call_null(...) (core_fail_call(__VA_ARGS__), NULL)
#define core_fail_malloc_null(error) (core_fail_malloc(error), NULL)

/* Prefix the message with the purpose of the call. */
int core_explain(struct core_error *error, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

#endif
