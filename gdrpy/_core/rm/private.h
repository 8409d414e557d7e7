/* SPDX-License-Identifier: MIT */
/* What the files of this folder share: calls of the driver, and the GPUs in the client. */
#ifndef GDRPY_RM_PRIVATE_H
#define GDRPY_RM_PRIVATE_H

#include <pthread.h>

#include "rm/abi.h"
#include "rm/client.h"

/*
 * A GPU, or a MIG instance of one, in the client. Made on first use, since it costs ten times what
 * a mapping costs, and kept.
 */
struct gdr_rm_device {
	struct gdr_rm_device *next;
	uint32_t instance;     /* RM's number of the GPU */
	uint32_t gpu_instance; /* MIG's */
	int node;	       /* its /dev/nvidia<minor>, open to keep the GPU initialized */
	uint32_t handle;
	struct gdr_nvrm_gpu gpu;
};

struct gdr_nvrm {
	int control; /* /dev/nvidiactl */
	uint32_t handle;
	uint32_t last_handle;
	pthread_mutex_t lock; /* devices and last_handle */
	struct gdr_rm_device *devices;
};

/* All of these that answer an int answer 0, or -1 with *error filled in, unless they say more. */

/* An ioctl, after which RM's status is in *status. */
int gdr_rm_call(struct gdr_nvrm *client, const char *call, unsigned long request, void *argument,
		const uint32_t *status, struct gdr_error *error);
int gdr_rm_free(struct gdr_nvrm *client, uint32_t parent, uint32_t object, struct gdr_error *error);
int gdr_rm_control(struct gdr_nvrm *client, const char *call, uint32_t object, uint32_t command,
		   void *params, uint32_t params_size, struct gdr_error *error);

/* A control whose parameters have grown: *size is what the driver took. */
int gdr_rm_control_grown(struct gdr_nvrm *client, const char *call, uint32_t object,
			 uint32_t command, void *params, uint32_t *size, uint32_t old_size,
			 struct gdr_error *error);

uint32_t gdr_rm_new_handle(struct gdr_nvrm *client);

/* A new object, with the client's lock held. */
int gdr_rm_alloc(struct gdr_nvrm *client, const char *call, uint32_t parent, uint32_t class_id,
		 const void *params, uint32_t params_size, uint32_t *handle,
		 struct gdr_error *error);

/* A descriptor of /dev/nvidia<minor>, or -1. */
int gdr_rm_open_node(uint32_t minor, struct gdr_error *error);

/* Find a GPU by its RM device instance, or, where wanted is given, by its PCI address. */
int gdr_rm_find_card(struct gdr_nvrm *client, const struct gdr_nvrm_gpu *wanted, uint32_t *instance,
		     struct gdr_nvrm_gpu *gpu, struct gdr_error *error);

/* The device of a GPU or a MIG instance, made if need be; NULL with *error filled in. */
const struct gdr_rm_device *gdr_rm_device(struct gdr_nvrm *client, uint32_t instance,
					  uint32_t gpu_instance, const struct gdr_nvrm_gpu *known,
					  struct gdr_error *error);
/* The one with this handle. */
const struct gdr_rm_device *gdr_rm_device_of(struct gdr_nvrm *client, uint32_t handle);

/* After a call that RM refused: what explains it, if that is not a want of memory or of a right. */
void gdr_rm_explain(struct gdr_nvrm *client, const struct gdr_rm_device *device,
		    struct gdr_error *error);

#endif
