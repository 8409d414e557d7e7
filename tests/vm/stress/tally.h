/* SPDX-License-Identifier: MIT */
/* How often each kind of call had each result, counted by many processes at once. */
#ifndef STRESS_TALLY_H
#define STRESS_TALLY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* A result is 0, an errno, or the signal that an access met. */
enum {
	RESULT_SIGBUS = 134,
	RESULT_SIGSEGV,
	RESULT_UNKNOWN, /* no errno of user space's */
	RESULTS,
};

#define TALLY_KINDS 64
#define RESULTS_ALLOWED 12

/* What is counted: its name, and the results that are no fault; 0 is none unless it must fail. */
struct kind {
	const char *name;
	bool must_fail;
	int allowed[RESULTS_ALLOWED];
};

struct tally {
	_Atomic uint64_t total;
	_Atomic uint64_t counts[TALLY_KINDS][RESULTS];
};

/* All of it zero, shared with the children to come. */
void *shared_memory(size_t size);

/* The result of a call that returns a negative number for an errno. */
int result_of(long returned);
const char *result_name(int result);

void tally_add(struct tally *tally, unsigned int kind, int result);
bool kind_allows(const struct kind *kind, int result);

/* A line for each kind. */
void tally_print(const struct tally *tally, const struct kind *kinds, unsigned int count);
/* An object of objects: {"kind": {"ok": 5, "EINVAL": 1}}. */
void tally_print_json(const struct tally *tally, const struct kind *kinds, unsigned int count);

#endif
