/* SPDX-License-Identifier: MIT */
/*
 * The backends, which map GPU memory for the CPU, and the choice among them.
 *
 * The library neither links nor loads CUDA. It queries pointers through `struct core_cuda`, which
 * core_cuda_find() fills from the driver that the process has loaded. Exported memory needs no
 * CUDA.
 */
#ifndef GDRPY_BACKENDS_H
#define GDRPY_BACKENDS_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/node.h"
#include "cuda/driver.h"
#include "cuda/pointer.h"
#include "engine/engine.h"
#include "memory/memory.h"

/* The memory to take in: a range at a device pointer, or a whole VMM allocation. */
struct core_request {
	uint64_t ptr;		      /* GPU address in this process; 0 if only fd is known */
	uint64_t nbytes;	      /* at least 1 */
	int fd;			      /* of the VMM allocation that begins at ptr, else -1 */
	int device;		      /* CUDA ordinal of fd's allocation */
	bool gpu_pages;		      /* round out to the backend's pages, including neighbours */
	bool revocable;		      /* lose the memory when its owner frees it */
	bool sigbus;		      /* then an access raises SIGBUS instead of reading zeros */
	bool force_pcie;	      /* through BAR1 even if GPU memory is coherent */
	const struct core_node *node; /* the kernel module's, kept open by the caller; NULL: none */
};

/* CUDA's facts about a request's memory. Each take asks CUDA once. */
struct core_found {
	struct core_pointer pointer;
	struct core_range range; /* in whole GPU pages if the request asks for them */
};

/* Whether a backend is usable here; if not, the reason and the remedy. */
struct core_status {
	bool usable;
	char reason[320];
	char remedy[160];
};

struct core_backend {
	const char *name;
	bool revocable_pins;

	/* device is -1 if unknown; node as in a request. Creates no CUDA context. */
	void (*status)(const struct core_cuda *cuda, int device, const struct core_node *node,
		       struct core_status *status);
	/*
	 * Try pins of scratch memory on a CUDA device: without a context, and in `context`, this
	 * thread's, unless it is NULL. 0, or -1 with *error filled in. The function is NULL if
	 * status() suffices.
	 */
	int (*prove)(const struct core_cuda *cuda, int device, void *context,
		     struct core_error *error);
	struct core_memory *(*take)(const struct core_cuda *cuda,
				    const struct core_request *request,
				    const struct core_found *found, struct core_error *error);
	/*
	 * Take in exported memory by its descriptor, which the caller keeps. The function is NULL
	 * if the backend has no exports. Simulated memory does not know its nbytes and device.
	 */
	struct core_memory *(*take_export)(int fd, uint64_t nbytes, int device,
					   struct core_error *error);
};

extern const struct core_backend core_backend_gdrdrv, core_backend_dmabuf, core_backend_nvrm,
	core_backend_sim;

/* All backends, in order of preference on a real GPU, ended by NULL. */
extern const struct core_backend *const core_backends[];

/* The backends to try with this driver, in order of preference, ended by NULL. */
const struct core_backend *const *core_candidates(const struct core_cuda *cuda);

/* The backend with this name, or NULL. */
const struct core_backend *core_backend_named(const char *name);

/*
 * Take in memory with the forced backend or, if it is NULL, with the first that can. NULL on
 * failure; the message gives the reason and the remedy of each backend tried.
 */
struct core_memory *core_take(const struct core_cuda *cuda, const struct core_backend *forced,
			      const struct core_request *request, struct core_error *error);

/* Describe part of nvrm's memory to the copy engine; false if there is no such part. */
bool core_nvrm_part(const struct core_memory *memory, unsigned int index, struct core_rm_gpu *gpu,
		    struct core_engine_block *block);

/* Fill in the reason and the remedy for an errno of core_node_open(). */
void core_node_explain(int error, struct core_status *status);

/* Set the reason and the remedy, truncated if they do not fit. */
void core_status_say(struct core_status *status, const char *reason, const char *remedy);

/* The NVIDIA kernel driver's version, or "" without one; whether nvrm was compared with it. */
void core_driver_version(char version[32]);
bool core_driver_tested(const char *version);

#endif
