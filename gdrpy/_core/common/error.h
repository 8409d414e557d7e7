/* SPDX-License-Identifier: MIT */
/* What went wrong: fields for programs, and a sentence for people that says what to do. */
#ifndef GDRPY_ERROR_H
#define GDRPY_ERROR_H

#include <stdint.h>

enum core_failure {
	CORE_FAILED_CALL = 1, /* of the kernel or the NVIDIA driver */
	CORE_FAILED_CUDA,     /* a call of CUDA */
	CORE_FAILED_MEMORY,   /* of the GPU, of its BAR1, of a quota or of this process, is full */
	CORE_FAILED_PERMISSION,	 /* to open a node, or to write */
	CORE_FAILED_UNAVAILABLE, /* this backend, on this machine or for this memory */
	CORE_FAILED_HANDLE,  /* what was passed is not what it should be: a pointer, a descriptor */
	CORE_FAILED_SIZE,    /* the range runs past its allocation */
	CORE_FAILED_REVOKED, /* the GPU memory is gone */
};

struct core_error {
	enum core_failure failure;
	int number;	    /* errno, always set */
	uint32_t status;    /* the NVIDIA driver's own: RM's or a CUresult; 0 if it did not say */
	const char *result; /* the name of a CUresult, else NULL */
	char call[128];	    /* what failed; empty where no call did */
	char purpose[96];   /* what core_explain() said that it was for; else empty */
	char message[1024]; /* all that, and what to do */
};

/* All of these return -1. The first two fill in *error; their arguments may point into it. */
int core_fail(struct core_error *error, enum core_failure failure, int number, const char *format,
	      ...) __attribute__((format(printf, 4, 5)));

/*
 * For a call that failed with an errno and perhaps a driver's status: the one place that chooses
 * the failure by the errno. The message is the call, what the errno means, and a remedy.
 */
int core_fail_call(struct core_error *error, int number, uint32_t status, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

/* Say what the call was for, ahead of the message. */
int core_explain(struct core_error *error, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

#endif
