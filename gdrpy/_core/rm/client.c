/* SPDX-License-Identifier: MIT */
/* The client: its calls to the driver, and its creation and destruction. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#include "common/forks.h"
#include "rm/private.h"

#define CONTROL_NODE "/dev/nvidiactl"
#define HANDLE_BASE 0x67640000u /* arbitrary: RM requires unique handles in a client */

/* The only place that translates an RM status to an errno. */
static int status_errno(uint32_t status)
{
	switch (status) {
	case NVRM_STATUS_INSUFFICIENT_RESOURCES: /* BAR1 is full */
	case NVRM_STATUS_NO_MEMORY:
		return ENOMEM;
	case NVRM_STATUS_INSUFFICIENT_PERMISSIONS:
		return EACCES;
	case NVRM_STATUS_INVALID_ARGUMENT:
	case NVRM_STATUS_INVALID_OBJECT_HANDLE:
	case NVRM_STATUS_INVALID_PARAMETER: /* also for a descriptor that is not an export */
	case NVRM_STATUS_OBJECT_NOT_FOUND:
		return EINVAL;
	case NVRM_STATUS_NOT_SUPPORTED:
		return EOPNOTSUPP;
	default:
		return EIO;
	}
}

int core_rm_call_on(int fd, const char *call, unsigned long request, void *argument,
		    const uint32_t *status, struct core_error *error)
{
	int ret;

	do {
		ret = ioctl(fd, request, argument);
	} while (ret < 0 && errno == EINTR);

	if (ret < 0)
		return core_fail_call(error, errno, 0, "%s", call);
	if (*status)
		return core_fail_call(error, status_errno(*status), *status, "%s", call);
	return 0;
}

int core_rm_call(struct core_rm *client, const char *call, unsigned long request, void *argument,
		 const uint32_t *status, struct core_error *error)
{
	return core_rm_call_on(client->control, call, request, argument, status, error);
}

static int rm_alloc(struct core_rm *client, const char *call, struct nvrm_alloc *alloc,
		    struct core_error *error)
{
	return core_rm_call(client, call, NVRM_IOCTL_ALLOC, alloc, &alloc->status, error);
}

int core_rm_free(struct core_rm *client, uint32_t parent, uint32_t object, struct core_error *error)
{
	struct nvrm_free arg = {.root = client->handle, .parent = parent, .object = object};

	return core_rm_call(client, "RM_FREE", NVRM_IOCTL_FREE, &arg, &arg.status, error);
}

int core_rm_control(struct core_rm *client, const char *call, uint32_t object, uint32_t command,
		    void *params, uint32_t params_size, struct core_error *error)
{
	struct nvrm_control arg = {
		.client = client->handle,
		.object = object,
		.command = command,
		.params = (uintptr_t)params,
		.params_size = params_size,
	};

	return core_rm_call(client, call, NVRM_IOCTL_CONTROL, &arg, &arg.status, error);
}

/* A control whose parameters have grown. *size becomes the size that the driver accepted. */
int core_rm_control_grown(struct core_rm *client, const char *call, uint32_t object,
			  uint32_t command, void *params, uint32_t *size, uint32_t old_size,
			  struct core_error *error)
{
	if (!core_rm_control(client, call, object, command, params, *size, error))
		return 0;
	if (error->status != NVRM_STATUS_INVALID_ARGUMENT ||
	    core_rm_control(client, call, object, command, params, old_size, error))
		return -1;
	*size = old_size;
	return 0;
}

uint32_t core_rm_new_handle(struct core_rm *client)
{
	uint32_t handle;

	pthread_mutex_lock(&client->lock);
	handle = HANDLE_BASE + ++client->last_handle;
	pthread_mutex_unlock(&client->lock);
	return handle;
}

int core_rm_alloc(struct core_rm *client, const char *call, uint32_t parent, uint32_t class_id,
		  const void *params, uint32_t params_size, uint32_t *handle,
		  struct core_error *error)
{
	struct nvrm_alloc alloc = {
		.root = client->handle,
		.parent = parent,
		.object = HANDLE_BASE + ++client->last_handle,
		.class_id = class_id,
		.params = (uintptr_t)params,
		.params_size = params_size,
	};

	*handle = alloc.object;
	return rm_alloc(client, call, &alloc, error);
}

int core_rm_open(struct core_rm **result, struct core_error *error)
{
	struct nvrm_alloc alloc = {.class_id = NVRM_CLASS_ROOT_CLIENT};
	struct core_rm *client = calloc(1, sizeof(*client));

	if (!client)
		return core_fail_malloc(error);

	client->control = core_private_open(CONTROL_NODE, O_RDWR);
	if (client->control < 0) {
		core_fail_call(error, errno, 0, "open " CONTROL_NODE);
		goto free_client;
	}

	if (rm_alloc(client, "RM_ALLOC (client)", &alloc, error))
		goto close_control;

	client->handle = alloc.object;
	pthread_mutex_init(&client->lock, NULL);
	*result = client;
	return 0;

close_control:
	core_private_close(client->control);
free_client:
	free(client);
	return -1;
}

const struct core_rm_obstacle *core_rm_open_obstacle(int error)
{
	static const struct core_rm_obstacle no_node = {
		"no NVIDIA kernel driver: " CONTROL_NODE " is missing",
		"install the driver, or pass the node into the container (--gpus, --device)"};
	static const struct core_rm_obstacle no_driver = {
		"no NVIDIA kernel driver is behind " CONTROL_NODE,
		"load the driver: modprobe nvidia, on the host of a container"};
	static const struct core_rm_obstacle no_permission = {
		"no permission to open " CONTROL_NODE " for reading and writing",
		"ask for access to " CONTROL_NODE " and /dev/nvidia<N> (mode 0666 is the default)"};

	switch (error) {
	case ENOENT:
		return &no_node;
	case ENXIO:
		return &no_driver;
	case EACCES:
	case EPERM:
		return &no_permission;
	default:
		return NULL;
	}
}

int core_rm_explain_open(struct core_error *error)
{
	const struct core_rm_obstacle *obstacle = core_rm_open_obstacle(error->number);

	if (!obstacle || error->failure == CORE_FAILED_PERMISSION)
		return core_explain(error, "cannot use the NVIDIA driver");
	return core_fail(error, CORE_FAILED_UNAVAILABLE, ENODEV, "%s: %s: %s", error->call,
			 obstacle->reason, obstacle->remedy);
}

uint32_t core_rm_handle(const struct core_rm *client)
{
	return client->handle;
}

void core_rm_close(struct core_rm *client)
{
	struct core_error ignored;

	/* Freeing the client frees all its objects. Closing the descriptor would, too. */
	core_rm_free(client, 0, client->handle, &ignored);
	core_rm_abandon(client);
}

void core_rm_abandon(struct core_rm *client)
{
	struct core_rm_device *next;

	for (struct core_rm_device *device = client->devices; device; device = next) {
		next = device->next;
		core_private_close(device->node);
		free(device);
	}
	core_private_close(client->control);
	pthread_mutex_destroy(&client->lock);
	free(client);
}
