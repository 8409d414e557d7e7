/* SPDX-License-Identifier: MIT */
/* The GPUs in the client, and what the driver reports about them. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/forks.h"
#include "rm/private.h"

static const struct core_rm_obstacle confidential = {
	"confidential computing is on, so the CPU cannot map GPU memory",
	"turn it off, or copy with CUDA",
};
static const struct core_rm_obstacle guest = {
	"this is a virtual GPU (vGPU), whose host refuses CPU mappings",
	"pass the whole GPU through, or copy with CUDA",
};
static const struct core_rm_obstacle nameless_instance = {
	"the GPU is split into MIG instances, and the driver does not report which one holds "
	"memory",
	"install driver 545.23.06 or newer",
};
static const struct core_rm_obstacle foreign_instance = {
	"the memory is in a MIG instance of the GPU that this process may not use",
	"give the instance to its container, or grant read access to its node in /dev/nvidia-caps",
};

/* Report the obstacle that made a call fail. */
static void blocked(struct core_error *error, const struct core_rm_obstacle *obstacle)
{
	core_fail(error, CORE_FAILED_UNAVAILABLE, ENODEV, "%s: %s (%s)", error->call,
		  obstacle->reason, obstacle->remedy);
}

static int instance_of(struct core_rm *client, uint32_t gpu_id, uint32_t *instance,
		       struct core_error *error)
{
	struct nvrm_gpu_id_info info = {.gpu_id = gpu_id};

	if (core_rm_control(client, "GPU_GET_ID_INFO_V2", client->handle,
			    NVRM_CTRL_GPU_GET_ID_INFO_V2, &info, sizeof(info), error))
		return -1;

	*instance = info.device_instance;
	return 0;
}

/* Minor, instance and PCI address are independent numbers. Only the card list relates them. */
int core_rm_find_card(struct core_rm *client, const struct core_rm_gpu *wanted, uint32_t *instance,
		      struct core_rm_gpu *gpu, struct core_error *error)
{
	struct nvrm_card_list list = {0};
	const uint32_t no_status = 0;
	int i;

	if (core_rm_call(client, "CARD_INFO", NVRM_IOCTL_CARD_INFO, &list, &no_status, error))
		return -1;

	for (i = 0; i < NVRM_MAX_CARDS; i++) {
		const struct nvrm_card_info *card = &list.card[i];
		uint32_t found;

		if (!card->valid)
			continue;
		if (wanted && (card->domain != wanted->pci_domain || card->bus != wanted->pci_bus ||
			       card->slot != wanted->pci_slot))
			continue;
		/* The list includes GPUs that this container may not use: skip them. */
		if (instance_of(client, card->gpu_id, &found, error)) {
			if (wanted)
				return -1;
			continue;
		}
		if (!wanted && found != *instance)
			continue;

		*instance = found;
		gpu->pci_domain = card->domain;
		gpu->pci_bus = card->bus;
		gpu->pci_slot = card->slot;
		gpu->minor = card->minor;
		return 0;
	}

	return core_fail_call(error, ENODEV, 0, "CARD_INFO (this GPU is not listed)");
}

int core_rm_open_node(uint32_t minor, struct core_error *error)
{
	char path[sizeof("/dev/nvidia4294967295")];
	int fd;

	snprintf(path, sizeof(path), "/dev/nvidia%u", minor);
	fd = core_private_open(path, O_RDWR);
	return fd < 0 ? core_fail_call(error, errno, 0, "open %s", path) : fd;
}

#define INSTANCE_FILE "/proc/driver/nvidia/capabilities/gpu%u/mig/gi%u/access"
#define MAX_INSTANCES 15

/* Open the node that grants access to a MIG instance. A file holds its number. */
static int open_capability(uint32_t minor, uint32_t gpu_instance, struct core_error *error)
{
	char path[80], text[128] = "";
	unsigned int number;
	ssize_t got;
	int fd;

	snprintf(path, sizeof(path), INSTANCE_FILE, minor, gpu_instance);
	fd = core_private_open(path, O_RDONLY);
	if (fd < 0)
		return core_fail_call(error, errno, 0, "open %s", path);
	got = read(fd, text, sizeof(text) - 1);
	core_private_close(fd);
	if (got < 0 || sscanf(text, "DeviceFileMinor: %u", &number) != 1)
		return core_fail_call(error, EIO, 0, "open %s", path);

	snprintf(path, sizeof(path), "/dev/nvidia-caps/nvidia-cap%u", number);
	fd = core_private_open(path, O_RDONLY);
	return fd < 0 ? core_fail_call(error, errno, 0, "open %s", path) : fd;
}

/*
 * Only a device subscribed to a MIG instance can take in its memory. RM keeps a descriptor of the
 * capability itself.
 */
static int subscribe(struct core_rm *client, const struct core_rm_device *device,
		     struct core_error *error)
{
	struct nvrm_subdevice_params subdevice = {0};
	struct nvrm_instance_params instance = {.id = device->gpu_instance};
	uint32_t handle;
	int ret, capability = open_capability(device->gpu.minor, device->gpu_instance, error);

	if (capability < 0)
		return -1;
	instance.capability = (uint64_t)capability;
	ret = core_rm_alloc(client, "RM_ALLOC (subdevice)", device->handle, NVRM_CLASS_SUBDEVICE,
			    &subdevice, sizeof(subdevice), &handle, error);
	if (!ret)
		ret = core_rm_alloc(client, "RM_ALLOC (MIG instance)", handle, NVRM_CLASS_INSTANCE,
				    &instance, sizeof(instance), &handle, error);
	core_private_close(capability);
	return ret;
}

/* Fill in the rest of a device whose GPU and instance are set, with the client's lock held. */
static int device_make(struct core_rm *client, struct core_rm_device *device,
		       struct core_error *error)
{
	struct nvrm_device_params params = {
		.device_instance = device->instance,
		.client_share = client->handle,
	};
	struct core_error ignored;

	device->node = core_rm_open_node(device->gpu.minor, error);
	if (device->node < 0)
		return -1;
	if (core_rm_alloc(client, "RM_ALLOC (device)", client->handle, NVRM_CLASS_DEVICE, &params,
			  sizeof(params), &device->handle, error))
		goto close_node;
	if (device->gpu_instance != NVRM_NO_INSTANCE && subscribe(client, device, error)) {
		if (error->number != ENOMEM)
			blocked(error, &foreign_instance);
		goto free_device;
	}
	return 0;

free_device:
	core_rm_free(client, client->handle, device->handle, &ignored);
close_node:
	core_private_close(device->node);
	return -1;
}

const struct core_rm_device *core_rm_device(struct core_rm *client, uint32_t instance,
					    uint32_t gpu_instance, const struct core_rm_gpu *known,
					    struct core_error *error)
{
	struct core_rm_device *device;

	pthread_mutex_lock(&client->lock);
	for (device = client->devices; device; device = device->next)
		if (device->instance == instance && device->gpu_instance == gpu_instance)
			goto out;

	device = calloc(1, sizeof(*device));
	if (!device) {
		core_fail_malloc(error);
		goto out;
	}
	device->instance = instance;
	device->gpu_instance = gpu_instance;
	if (known)
		device->gpu = *known;
	if ((!known && core_rm_find_card(client, NULL, &instance, &device->gpu, error)) ||
	    device_make(client, device, error)) {
		free(device);
		device = NULL;
		goto out;
	}
	device->next = client->devices;
	client->devices = device;
out:
	pthread_mutex_unlock(&client->lock);
	return device;
}

/* Protected PCIe mode counts too, although the driver then reports the feature as off. */
static bool is_confidential(struct core_rm *client)
{
	struct nvrm_confidential answer = {0};
	struct core_error ignored;
	uint32_t object, size = sizeof(answer);
	int ret;

	pthread_mutex_lock(&client->lock);
	ret = core_rm_alloc(client, "RM_ALLOC (confidential computing)", client->handle,
			    NVRM_CLASS_CONFIDENTIAL, NULL, 0, &object, &ignored);
	pthread_mutex_unlock(&client->lock);
	if (ret)
		return false;
	ret = core_rm_control_grown(client, "GET_CONFIDENTIAL", object, NVRM_CTRL_GET_CONFIDENTIAL,
				    &answer, &size, NVRM_CONFIDENTIAL_OLD_SIZE, &ignored);
	core_rm_free(client, client->handle, object, &ignored);
	return !ret && (answer.feature || answer.multi_gpu);
}

static bool is_guest(struct core_rm *client, const struct core_rm_device *device)
{
	struct nvrm_virtualization answer = {0};
	struct core_error ignored;
	uint32_t size = sizeof(answer);

	return !core_rm_control_grown(client, "GET_VIRTUALIZATION", device->handle,
				      NVRM_CTRL_GET_VIRTUALIZATION, &answer, &size,
				      NVRM_VIRTUALIZATION_OLD_SIZE, &ignored) &&
	       answer.mode == NVRM_VIRTUALIZATION_GUEST;
}

/* Whether a GPU (NULL: every GPU that this process may use) is virtual. */
static bool is_virtual(struct core_rm *client, const struct core_rm_gpu *wanted)
{
	struct core_error ignored;
	const struct core_rm_device *device;
	struct core_rm_gpu gpu;
	uint32_t instance;
	bool found = false;

	if (wanted) {
		if (core_rm_find_card(client, wanted, &instance, &gpu, &ignored))
			return false;
		device = core_rm_device(client, instance, NVRM_NO_INSTANCE, &gpu, &ignored);
		return device && is_guest(client, device);
	}
	for (instance = 0; instance < NVRM_MAX_CARDS; instance++) {
		device = core_rm_device(client, instance, NVRM_NO_INSTANCE, NULL, &ignored);
		if (device && !is_guest(client, device))
			return false;
		found = found || device;
	}
	return found;
}

static bool has_instances(uint32_t minor)
{
	char path[80];

	for (uint32_t i = 0; i < MAX_INSTANCES; i++) {
		snprintf(path, sizeof(path), INSTANCE_FILE, minor, i);
		if (!access(path, F_OK))
			return true;
	}
	return false;
}

/* Ask about an invalid descriptor: a driver with another structure fails with another status. */
static bool tells_instances(struct core_rm *client)
{
	struct nvrm_export_info info = {.fd = -1};
	struct core_error error;

	return core_rm_control(client, "GET_EXPORT_OBJECT_INFO", client->handle,
			       NVRM_CTRL_GET_EXPORT_OBJECT_INFO, &info, sizeof(info), &error) &&
	       error.status == NVRM_STATUS_INVALID_PARAMETER;
}

bool core_rm_split(struct core_rm *client, const struct core_rm_gpu *wanted)
{
	struct core_error ignored;
	struct core_rm_gpu gpu;
	uint32_t instance;

	return !core_rm_find_card(client, wanted, &instance, &gpu, &ignored) &&
	       has_instances(gpu.minor);
}

const struct core_rm_obstacle *core_rm_find_obstacle(struct core_rm *client,
						     const struct core_rm_gpu *gpu)
{
	if (is_confidential(client))
		return &confidential;
	if (is_virtual(client, gpu))
		return &guest;
	if (gpu && core_rm_split(client, gpu) && !tells_instances(client))
		return &nameless_instance;
	return NULL;
}

const struct core_rm_device *core_rm_device_of(struct core_rm *client, uint32_t handle)
{
	const struct core_rm_device *device;

	pthread_mutex_lock(&client->lock);
	for (device = client->devices; device->handle != handle; device = device->next)
		;
	pthread_mutex_unlock(&client->lock);
	return device;
}

void core_rm_explain(struct core_rm *client, const struct core_rm_device *device,
		     struct core_error *error)
{
	if (!error->status || error->number == ENOMEM || error->number == EACCES)
		return;
	if (is_confidential(client))
		blocked(error, &confidential);
	else if (is_guest(client, device))
		blocked(error, &guest);
	else if (has_instances(device->gpu.minor) && !tells_instances(client))
		blocked(error, &nameless_instance);
}
