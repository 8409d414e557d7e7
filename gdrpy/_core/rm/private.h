/* SPDX-License-Identifier: MIT */
/* For this folder and engine/: calls to the driver, and the GPUs in the client. */
#ifndef GDRPY_RM_PRIVATE_H
#define GDRPY_RM_PRIVATE_H

#include <pthread.h>

#include "rm/abi.h"
#include "rm/client.h"

/*
 * A GPU or a MIG instance in the client. Created on first use and kept, because it costs ten times
 * as much as a mapping.
 */
struct core_rm_device {
	struct core_rm_device *next;
	uint32_t instance;     /* RM's number of the GPU */
	uint32_t gpu_instance; /* MIG's */
	int node; /* its /dev/nvidia<minor>, kept open so that the GPU stays initialized */
	uint32_t handle;
	struct core_rm_gpu gpu;
};

struct core_rm {
	int control; /* /dev/nvidiactl */
	uint32_t handle;
	uint32_t last_handle;
	pthread_mutex_t lock; /* devices and last_handle */
	struct core_rm_device *devices;
};

/* Unless noted, functions that return an int return 0, or -1 with *error filled in. */

/* Make an ioctl that stores RM's status in *status, on a descriptor or on the client's own. */
int core_rm_call_on(int fd, const char *call, unsigned long request, void *argument,
		    const uint32_t *status, struct core_error *error);
int core_rm_call(struct core_rm *client, const char *call, unsigned long request, void *argument,
		 const uint32_t *status, struct core_error *error);
int core_rm_free(struct core_rm *client, uint32_t parent, uint32_t object,
		 struct core_error *error);
int core_rm_control(struct core_rm *client, const char *call, uint32_t object, uint32_t command,
		    void *params, uint32_t params_size, struct core_error *error);

/* A control whose parameters have grown. *size becomes the size that the driver accepted. */
int core_rm_control_grown(struct core_rm *client, const char *call, uint32_t object,
			  uint32_t command, void *params, uint32_t *size, uint32_t old_size,
			  struct core_error *error);

uint32_t core_rm_new_handle(struct core_rm *client);

/* Allocate an object, with the client's lock held. */
int core_rm_alloc(struct core_rm *client, const char *call, uint32_t parent, uint32_t class_id,
		  const void *params, uint32_t params_size, uint32_t *handle,
		  struct core_error *error);

/* A descriptor of /dev/nvidia<minor>, or -1. */
int core_rm_open_node(uint32_t minor, struct core_error *error);

/* Find a GPU by its RM device instance, or by its PCI address if `wanted` is not NULL. */
int core_rm_find_card(struct core_rm *client, const struct core_rm_gpu *wanted, uint32_t *instance,
		      struct core_rm_gpu *gpu, struct core_error *error);

/* The device of a GPU or a MIG instance, created if necessary; NULL with *error filled in. */
const struct core_rm_device *core_rm_device(struct core_rm *client, uint32_t instance,
					    uint32_t gpu_instance, const struct core_rm_gpu *known,
					    struct core_error *error);
/* The device with this handle. */
const struct core_rm_device *core_rm_device_of(struct core_rm *client, uint32_t handle);

/* Explain a call that RM refused by an obstacle, unless memory or a permission was missing. */
void core_rm_explain(struct core_rm *client, const struct core_rm_device *device,
		     struct core_error *error);

#endif
