/* SPDX-License-Identifier: MIT */
#include "sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FAULTS 16

struct fault {
	const char *function;
	unsigned long calls_left; /* 0: no fault, or already triggered */
	CUresult code;
};

static struct fault faults[MAX_FAULTS];
static uint64_t calls[FUNCTION_COUNT];

static const char *known_function(const char *name, size_t length)
{
	for (size_t i = 0; i < FUNCTION_COUNT; i++)
		if (strlen(sim_symbols[i].base) == length &&
		    !memcmp(sim_symbols[i].base, name, length))
			return sim_symbols[i].base;
	return NULL;
}

/* Parses ":N" at *text, N in 1 to 1000000, and moves *text past it. 0 if it is missing. */
static unsigned long parse_number(const char **text)
{
	char *end;
	unsigned long number;

	if (**text != ':' || (*text)[1] < '0' || (*text)[1] > '9')
		return 0;
	number = strtoul(*text + 1, &end, 10);
	*text = end;
	return number <= 1000000 ? number : 0;
}

bool fault_set(const char *spec)
{
	struct fault parsed[MAX_FAULTS] = {0};
	size_t count = 0;

	while (*spec) {
		struct fault *fault = &parsed[count];
		size_t length = strcspn(spec, ":,");

		if (count++ == MAX_FAULTS)
			return false;
		fault->function = known_function(spec, length);
		spec += length;
		fault->calls_left = parse_number(&spec);
		fault->code = *spec == ':' ? parse_number(&spec) : CUDA_ERROR_OUT_OF_MEMORY;
		if (!fault->function || !fault->calls_left || !fault->code)
			return false;
		if (*spec == ',' && spec[1])
			spec++;
		else if (*spec)
			return false;
	}
	memcpy(faults, parsed, sizeof(faults));
	return true;
}

CUresult fault_take(enum sim_function function)
{
	CUresult code = CUDA_SUCCESS;

	calls[function]++;
	for (size_t i = 0; i < MAX_FAULTS; i++) {
		struct fault *fault = &faults[i];

		if (!fault->calls_left || strcmp(fault->function, sim_symbols[function].base))
			continue;
		if (--fault->calls_left == 0)
			code = fault->code;
	}
	return code;
}

int gdrsim_set_fault(const char *spec)
{
	bool valid;

	pthread_mutex_lock(&sim.lock);
	valid = fault_set(spec);
	pthread_mutex_unlock(&sim.lock);
	return valid ? 0 : -EINVAL;
}

uint64_t gdrsim_call_count(const char *function)
{
	uint64_t count = 0;

	if (!known_function(function, strlen(function)))
		return UINT64_MAX;
	pthread_mutex_lock(&sim.lock);
	for (size_t i = 0; i < FUNCTION_COUNT; i++)
		if (!strcmp(sim_symbols[i].base, function))
			count += calls[i];
	pthread_mutex_unlock(&sim.lock);
	return count;
}
