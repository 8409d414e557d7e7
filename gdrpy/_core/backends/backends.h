/* SPDX-License-Identifier: MIT */
/*
 * The ways to CPU-map GPU memory, and the choice among them.
 *
 * The library links no CUDA and loads none. What only CUDA knows of a pointer is asked of the
 * functions handed in as `struct core_cuda`, which core_cuda_find() takes from the driver that the
 * process has loaded; exported memory is taken in without any.
 */
#ifndef GDRPY_BACKENDS_H
#define GDRPY_BACKENDS_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/node.h"
#include "cuda/driver.h"
#include "memory/memory.h"

/* What is to be taken in: a range at a device pointer, or a whole VMM allocation. */
struct core_request {
	uint64_t ptr;	 /* GPU address in this process; 0 if only fd is known */
	uint64_t nbytes; /* at least 1 */
	int fd;		 /* of the VMM allocation that begins at ptr, else -1 */
	int device;	 /* CUDA ordinal, -1 to have the driver asked */
	bool gpu_pages;	 /* round it out to the backend's pages, neighbours included */
	bool revocable;	 /* lose the memory when its owner frees it, rather than keep it */
	bool sigbus;	 /* then an access kills, rather than find zeros */
	bool force_pcie; /* through BAR1 also where GPU memory is coherent */
	const struct core_node *node; /* the kernel module's, kept open by the caller; NULL: none */
};

/* Whether a backend can serve here; if not, why, and what would change it. */
struct core_status {
	bool usable;
	char reason[320];
	char remedy[160];
};

struct core_backend {
	const char *name;
	bool revocable_pins;

	/* device is -1 where none is known; node as in a request. Makes no CUDA context. */
	void (*status)(const struct core_cuda *cuda, int device, const struct core_node *node,
		       struct core_status *status);
	/*
	 * Whether pins succeed on a device of CUDA, tried by memory of its own: without a context,
	 * and in this thread's if that is one of the device (else NULL). 0, or -1 with *error
	 * filled in. NULL if status() tells all.
	 */
	int (*prove)(const struct core_cuda *cuda, int device, void *context,
		     struct core_error *error);
	struct core_memory *(*take)(const struct core_cuda *cuda,
				    const struct core_request *request, struct core_error *error);
	/*
	 * Exported memory, by its descriptor alone, which stays the caller's; NULL if the backend
	 * has none. nbytes and device are those of simulated memory; others know their own.
	 */
	struct core_memory *(*take_export)(int fd, uint64_t nbytes, int device,
					   struct core_error *error);
};

extern const struct core_backend core_backend_gdrdrv, core_backend_dmabuf, core_backend_nvrm,
	core_backend_sim;

/* All, in the order of choice on a real GPU, ended by NULL. */
extern const struct core_backend *const core_backends[];

/* Those that may be tried with this driver, in the order of choice, ended by NULL. */
const struct core_backend *const *core_candidates(const struct core_cuda *cuda);

/* By its name; NULL if there is none. */
const struct core_backend *core_backend_named(const char *name);

/*
 * Take memory in by one backend, or with NULL by the first that can. On failure NULL, and the
 * message tells the reason and the remedy of each that was tried.
 */
struct core_memory *core_take(const struct core_cuda *cuda, const struct core_backend *forced,
			      const struct core_request *request, struct core_error *error);

/* Fill in the reason and the remedy for an errno of core_node_open(). */
void core_node_explain(int error, struct core_status *status);

/* Both are cut where they do not fit. */
void core_status_say(struct core_status *status, const char *reason, const char *remedy);

/* The NVIDIA kernel driver's version, "" where none is loaded; and whether nvrm was compared. */
void core_driver_version(char version[32]);
bool core_driver_tested(const char *version);

#endif
