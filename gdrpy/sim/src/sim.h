/* SPDX-License-Identifier: MIT */
/* Shared by all parts of the simulation: the devices, the lock, and the entry of driver calls. */
#ifndef GDRPY_SIM_SIM_H
#define GDRPY_SIM_SIM_H

#include <pthread.h>
#include <stdbool.h>

#include "cuda_abi.h"

#define SIM_MAX_DEVICES 16
#define SIM_GRANULARITY ((uint64_t)2 << 20)

struct device {
	int ordinal;
	uint64_t total; /* bytes */
	uint64_t used;	/* by this process's own allocations; imported memory is its owner's */
	struct context *primary;
};

/* Support for handles that name memory to other nodes of an NVLink network. */
enum fabric {
	FABRIC_ABSENT,
	FABRIC_USABLE,	  /* from any process of this machine and user */
	FABRIC_NO_CHANNEL /* devices support them, but this process has no IMEX channel */
};

/* The lock guards everything. No thread holds it while it waits, copies or calls back. */
extern struct sim {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* an operation ended, or reached the head of its queue */
	bool initialized;
	bool forked; /* of an initialized process: nothing works in the child */
	int device_count;
	enum fabric fabric;
	bool peers; /* each device reaches the memory of the others */
	struct device devices[SIM_MAX_DEVICES];
} sim;

/* NULL if there is no such device. */
struct device *device_get(int ordinal);

/* The same, or CUDA_ERROR_INVALID_DEVICE. */
CUresult device_use(int ordinal, struct device **device);

/* Numbers for handles and buffer ids: never 0, never reused. */
uint64_t sim_next_id(void);

/* Ends the process: a genuine driver follows the handle of a stream or event without a look. */
_Noreturn void sim_no_such(const char *kind, const void *handle);

enum sim_function {
#define SIM_FUNCTION(symbol, base, version, parameters) FUNCTION_##symbol,
#include "functions.h"
	FUNCTION_COUNT
};

extern const struct sim_symbol {
	const char *base; /* the name to look it up by */
	unsigned int version;
	void *address;
} sim_symbols[FUNCTION_COUNT];

enum api_needs {
	NEEDS_NOTHING,
	NEEDS_INIT,
	NEEDS_CONTEXT, /* a usable current context, which becomes api_context */
};

CUresult api_enter(enum sim_function function, enum api_needs needs, struct context **context);
void api_leave(CUresult *entered);

/* The first declaration of a driver function; the lock is held until it returns. */
#define API(symbol, needs)                                                                         \
	struct context *api_context __attribute__((unused)) = NULL;                                \
	CUresult api_entered __attribute__((cleanup(api_leave))) =                                 \
		api_enter(FUNCTION_##symbol, needs, &api_context);                                 \
	if (api_entered != CUDA_SUCCESS)                                                           \
	return api_entered

/* Returns the error of a step that fails. */
#define TRY(step)                                                                                  \
	do {                                                                                       \
		CUresult tried = (step);                                                           \
		if (tried != CUDA_SUCCESS)                                                         \
			return tried;                                                              \
	} while (0)

/* Refuses a call unless a rule for its arguments holds. */
#define REQUIRE(rule) TRY((rule) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE)

/* --- fault.c: injected faults, and how often each function was called; the lock is held --- */

/*
 * "cuMemCreate:3,cuMemMap:1:2": the third call of cuMemCreate from now fails with
 * CUDA_ERROR_OUT_OF_MEMORY, the next one of cuMemMap with CUresult 2. False, with nothing changed,
 * if the text is invalid.
 */
bool fault_set(const char *spec);

/* Counts a call. Returns the injected fault, or CUDA_SUCCESS. */
CUresult fault_take(enum sim_function function);

/* Set while this thread runs a program's stream callback, which may not call the driver. */
extern __thread bool sim_in_callback;

#endif
