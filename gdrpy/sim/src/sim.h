/* SPDX-License-Identifier: MIT */
/* What all parts of the simulation share: its devices, the lock, and how a driver call begins. */
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

/* What becomes of handles that name memory to the other nodes of an NVLink network. */
enum fabric {
	FABRIC_ABSENT,
	FABRIC_USABLE,	  /* from any process of this machine and user */
	FABRIC_NO_CHANNEL /* the devices have them, and this process may use no IMEX channel */
};

/* Everything is guarded by the lock, which no thread holds while it waits, copies or calls back. */
extern struct sim {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* an operation ended, or one came to the head of its queue */
	bool initialized;
	bool forked; /* of an initialized process: nothing works in the child */
	int device_count;
	enum fabric fabric;
	bool peers; /* each device reaches the memory of the others */
	struct device devices[SIM_MAX_DEVICES];
} sim;

/* NULL unless the ordinal is a device's. */
struct device *device_get(int ordinal);

/* Numbers for handles and buffer ids: never 0, never given twice. */
uint64_t sim_next_id(void);

enum sim_function {
#define SIM_FUNCTION(symbol, base, version, parameters) FUNCTION_##symbol,
#include "functions.h"
#undef SIM_FUNCTION
	FUNCTION_COUNT
};

enum api_needs {
	NEEDS_NOTHING,
	NEEDS_INIT,
	NEEDS_CONTEXT, /* a current one that works; it is api_context */
};

CUresult api_enter(enum sim_function function, enum api_needs needs, struct context **context);
void api_leave(CUresult *entered);

/* The body of a driver function begins with this; the lock is held until it returns. */
#define API(symbol, needs)                                                                         \
	struct context *api_context __attribute__((unused)) = NULL;                                \
	CUresult api_entered __attribute__((cleanup(api_leave))) =                                 \
		api_enter(FUNCTION_##symbol, needs, &api_context);                                 \
	if (api_entered != CUDA_SUCCESS)                                                           \
	return api_entered

/* Set while this thread runs a function of the program's in a stream, which may not call us. */
extern __thread bool sim_in_callback;

#endif
