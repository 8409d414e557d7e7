/* SPDX-License-Identifier: MIT */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "block.h"
#include "context.h"

#define DEFAULT_MEMORY ((uint64_t)16 << 30)

struct sim sim = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.changed = PTHREAD_COND_INITIALIZER,
};

__thread bool sim_in_callback;

struct device *device_get(int ordinal)
{
	return ordinal >= 0 && ordinal < sim.device_count ? &sim.devices[ordinal] : NULL;
}

CUresult device_use(int ordinal, struct device **device)
{
	*device = device_get(ordinal);
	return *device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

uint64_t sim_next_id(void)
{
	static uint64_t last;

	return ++last;
}

void sim_no_such(const char *kind, const void *handle)
{
	fprintf(stderr, "gdrpy simulated GPU: there is no %s %p; a real driver may crash\n", kind,
		handle);
	abort();
}

static bool refuse(const char *variable, const char *value, const char *expected)
{
	fprintf(stderr, "gdrpy simulated GPU: %s='%s' is not %s\n", variable, value, expected);
	return false;
}

static bool configure_memory(const char *text, uint64_t *bytes)
{
	static const char suffixes[] = "KMGT";
	const char *suffix;
	char *end;
	uint64_t number;
	unsigned int shift = 0;

	if (*text < '0' || *text > '9')
		return false;
	number = strtoull(text, &end, 10);
	suffix = *end ? strchr(suffixes, *end) : NULL;
	if (suffix) {
		shift = 10 * (unsigned int)(suffix - suffixes + 1);
		end++;
	}
	if (*end || number > ((uint64_t)1 << 46) >> shift)
		return false;
	*bytes = number << shift;
	return *bytes && *bytes % SIM_GRANULARITY == 0;
}

static bool configure_fabric(const char *text)
{
	static const char *const values[] = {"0", "1", "no-channel"};

	for (int i = FABRIC_ABSENT; i <= FABRIC_NO_CHANNEL; i++) {
		if (strcmp(text, values[i]))
			continue;
		sim.fabric = (enum fabric)i;
		return true;
	}
	return false;
}

/* Reads the environment. On an invalid value, reports it and returns false. */
static bool configure(void)
{
	const char *memory = getenv("GDRPY_SIM_MEMORY");
	const char *devices = getenv("GDRPY_SIM_DEVICES");
	const char *fabric = getenv("GDRPY_SIM_FABRIC");
	const char *peers = getenv("GDRPY_SIM_PEERS");
	const char *fault = getenv("GDRPY_SIM_FAULT");
	uint64_t bytes = DEFAULT_MEMORY;
	long count = 1;

	if (memory && !configure_memory(memory, &bytes))
		return refuse("GDRPY_SIM_MEMORY", memory,
			      "a multiple of 2M up to 64T: a number, then K, M, G, T or nothing");
	if (devices) {
		char *end;

		count = strtol(devices, &end, 10);
		if (end == devices || *end || count < 1 || count > SIM_MAX_DEVICES)
			return refuse("GDRPY_SIM_DEVICES", devices, "a number from 1 to 16");
	}
	if (fabric && !configure_fabric(fabric))
		return refuse("GDRPY_SIM_FABRIC", fabric, "0, 1 or no-channel");
	if (peers && strcmp(peers, "0") && strcmp(peers, "1"))
		return refuse("GDRPY_SIM_PEERS", peers, "0 or 1");
	if (fault && !fault_set(fault))
		return refuse(
			"GDRPY_SIM_FAULT", fault,
			"a list of FUNCTION:CALL or FUNCTION:CALL:CURESULT of known functions");

	sim.device_count = (int)count;
	sim.peers = !peers || !strcmp(peers, "1");
	for (int i = 0; i < count; i++)
		sim.devices[i] = (struct device){.ordinal = i, .total = bytes};
	return true;
}

static void before_fork(void)
{
	pthread_mutex_lock(&sim.lock);
}

static void after_fork_in_parent(void)
{
	pthread_mutex_unlock(&sim.lock);
}

static void after_fork_in_child(void)
{
	pthread_mutex_init(&sim.lock, NULL);
	pthread_cond_init(&sim.changed, NULL);
	sim.forked = true;
	blocks_begin_child();
}

static CUresult check_state(enum sim_function function, enum api_needs needs,
			    struct context **context)
{
	if (needs != NEEDS_NOTHING) {
		if (sim.forked || !sim.initialized)
			return CUDA_ERROR_NOT_INITIALIZED;
		if (sim_in_callback)
			return CUDA_ERROR_NOT_PERMITTED;
	}
	TRY(fault_take(function));
	return needs == NEEDS_CONTEXT ? context_current(context) : CUDA_SUCCESS;
}

CUresult api_enter(enum sim_function function, enum api_needs needs, struct context **context)
{
	CUresult result = CUDA_SUCCESS;

	pthread_mutex_lock(&sim.lock);
	/* Here and not in cuInit, so that the environment can make cuInit itself fail. */
	if (function == FUNCTION_cuInit && !sim.initialized && !configure())
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		result = check_state(function, needs, context);
	if (result != CUDA_SUCCESS)
		pthread_mutex_unlock(&sim.lock);
	return result;
}

void api_leave(CUresult *entered)
{
	if (*entered == CUDA_SUCCESS)
		pthread_mutex_unlock(&sim.lock);
}

CUresult cuInit(unsigned int flags)
{
	API(cuInit, NEEDS_NOTHING);

	if (sim.forked)
		return CUDA_ERROR_NOT_INITIALIZED;
	REQUIRE(!flags);
	if (sim.initialized)
		return CUDA_SUCCESS;
	if (pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child))
		return CUDA_ERROR_OUT_OF_MEMORY;
	sim.initialized = true;
	return CUDA_SUCCESS;
}
