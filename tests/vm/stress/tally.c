/* SPDX-License-Identifier: MIT */
#include "tally.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void *shared_memory(size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED) {
		perror("shared memory");
		exit(1);
	}
	return memory;
}

int result_of(long returned)
{
	if (returned >= 0)
		return 0;
	return errno < RESULT_SIGBUS ? errno : RESULT_UNKNOWN;
}

const char *result_name(int result)
{
	const char *name;

	switch (result) {
	case 0:
		return "ok";
	case RESULT_SIGBUS:
		return "SIGBUS";
	case RESULT_SIGSEGV:
		return "SIGSEGV";
	default:
		name = strerrorname_np(result);
		return name ? name : "unknown";
	}
}

void tally_add(struct tally *tally, unsigned int kind, int result)
{
	atomic_fetch_add_explicit(&tally->counts[kind][result], 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&tally->total, 1, memory_order_relaxed);
}

bool kind_allows(const struct kind *kind, int result)
{
	if (!result)
		return !kind->must_fail;
	for (unsigned int i = 0; i < RESULTS_ALLOWED && kind->allowed[i]; i++) {
		if (kind->allowed[i] == result)
			return true;
	}
	return false;
}

static uint64_t kind_total(const struct tally *tally, unsigned int kind)
{
	uint64_t total = 0;

	for (int result = 0; result < RESULTS; result++)
		total += tally->counts[kind][result];
	return total;
}

void tally_print(const struct tally *tally, const struct kind *kinds, unsigned int count)
{
	for (unsigned int kind = 0; kind < count; kind++) {
		printf("  %-20s %8llu ", kinds[kind].name,
		       (unsigned long long)kind_total(tally, kind));
		for (int result = 0; result < RESULTS; result++) {
			if (tally->counts[kind][result])
				printf("  %s %llu", result_name(result),
				       (unsigned long long)tally->counts[kind][result]);
		}
		printf("\n");
	}
}

void tally_print_json(const struct tally *tally, const struct kind *kinds, unsigned int count)
{
	printf("{");
	for (unsigned int kind = 0; kind < count; kind++) {
		const char *comma = "";

		printf("%s\"%s\": {", kind ? ", " : "", kinds[kind].name);
		for (int result = 0; result < RESULTS; result++) {
			if (!tally->counts[kind][result])
				continue;
			printf("%s\"%s\": %llu", comma, result_name(result),
			       (unsigned long long)tally->counts[kind][result]);
			comma = ", ";
		}
		printf("}");
	}
	printf("}");
}
