/* SPDX-License-Identifier: MIT */
#include "rm/client.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "common/forks.h"
#include "rm/abi.h"

#define HANDLE_BASE 0x67640000u /* any number of ours: RM wants handles unique in the client */

/*
 * A GPU, or a MIG instance of one, in the client. Made on first use, since it costs ten times what
 * a mapping costs, and kept.
 */
struct device {
	struct device *next;
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
	struct device *devices;
};

static const struct gdr_nvrm_obstacle confidential = {
	"confidential computing is on, which keeps the CPU from the GPU's memory",
	"switch it off, or copy by CUDA",
};
static const struct gdr_nvrm_obstacle guest = {
	"this is a virtual GPU (vGPU), whose host refuses the CPU its memory",
	"pass the whole GPU through, or copy by CUDA",
};
static const struct gdr_nvrm_obstacle nameless_instance = {
	"the GPU is split into MIG instances, and the driver does not tell which one memory is in",
	"install driver 545.23.06 or newer",
};
static const struct gdr_nvrm_obstacle foreign_instance = {
	"the memory is in a MIG instance of the GPU that this process may not use",
	"give the instance to its container, or read access to its node in /dev/nvidia-caps",
};

static int fail(struct gdr_nvrm_error *error, const char *call, int number, uint32_t status)
{
	snprintf(error->call, sizeof(error->call), "%s", call);
	error->error = number;
	error->status = status;
	error->obstacle = NULL;
	return -1;
}

/* The one place where an RM status becomes an errno. */
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

static int rm_ioctl(struct gdr_nvrm *client, const char *call, unsigned long request,
		    void *argument, const uint32_t *status, struct gdr_nvrm_error *error)
{
	int ret;

	do {
		ret = ioctl(client->control, request, argument);
	} while (ret < 0 && errno == EINTR);

	if (ret < 0)
		return fail(error, call, errno, 0);
	if (*status)
		return fail(error, call, status_errno(*status), *status);
	return 0;
}

static int rm_alloc(struct gdr_nvrm *client, const char *call, struct nvrm_alloc *alloc,
		    struct gdr_nvrm_error *error)
{
	return rm_ioctl(client, call, NVRM_IOCTL_ALLOC, alloc, &alloc->status, error);
}

static int rm_free(struct gdr_nvrm *client, uint32_t parent, uint32_t object,
		   struct gdr_nvrm_error *error)
{
	struct nvrm_free arg = {.root = client->handle, .parent = parent, .object = object};

	return rm_ioctl(client, "RM_FREE", NVRM_IOCTL_FREE, &arg, &arg.status, error);
}

static int rm_control(struct gdr_nvrm *client, const char *call, uint32_t object, uint32_t command,
		      void *params, uint32_t params_size, struct gdr_nvrm_error *error)
{
	struct nvrm_control arg = {
		.client = client->handle,
		.object = object,
		.command = command,
		.params = (uintptr_t)params,
		.params_size = params_size,
	};

	return rm_ioctl(client, call, NVRM_IOCTL_CONTROL, &arg, &arg.status, error);
}

/* A control whose parameters have grown: *size is what the driver took. */
static int rm_control_grown(struct gdr_nvrm *client, const char *call, uint32_t object,
			    uint32_t command, void *params, uint32_t *size, uint32_t old_size,
			    struct gdr_nvrm_error *error)
{
	if (!rm_control(client, call, object, command, params, *size, error))
		return 0;
	if (error->status != NVRM_STATUS_INVALID_ARGUMENT ||
	    rm_control(client, call, object, command, params, old_size, error))
		return -1;
	*size = old_size;
	return 0;
}

static uint32_t new_handle(struct gdr_nvrm *client)
{
	uint32_t handle;

	pthread_mutex_lock(&client->lock);
	handle = HANDLE_BASE + ++client->last_handle;
	pthread_mutex_unlock(&client->lock);
	return handle;
}

int gdr_nvrm_open(struct gdr_nvrm **result, struct gdr_nvrm_error *error)
{
	struct nvrm_alloc alloc = {.class_id = NVRM_CLASS_ROOT_CLIENT};
	struct gdr_nvrm *client = calloc(1, sizeof(*client));

	if (!client)
		return fail(error, "malloc", ENOMEM, 0);

	client->control = gdr_private_open("/dev/nvidiactl", O_RDWR);
	if (client->control < 0) {
		fail(error, "open /dev/nvidiactl", errno, 0);
		goto free_client;
	}

	if (rm_alloc(client, "RM_ALLOC (client)", &alloc, error))
		goto close_control;

	client->handle = alloc.object;
	pthread_mutex_init(&client->lock, NULL);
	*result = client;
	return 0;

close_control:
	gdr_private_close(client->control);
free_client:
	free(client);
	return -1;
}

void gdr_nvrm_close(struct gdr_nvrm *client)
{
	struct gdr_nvrm_error ignored;

	/* Freeing the client frees all that is in it; closing the descriptor would, too. */
	rm_free(client, 0, client->handle, &ignored);
	gdr_nvrm_abandon(client);
}

void gdr_nvrm_abandon(struct gdr_nvrm *client)
{
	struct device *next;

	for (struct device *device = client->devices; device; device = next) {
		next = device->next;
		gdr_private_close(device->node);
		free(device);
	}
	gdr_private_close(client->control);
	pthread_mutex_destroy(&client->lock);
	free(client);
}

static int instance_of(struct gdr_nvrm *client, uint32_t gpu_id, uint32_t *instance,
		       struct gdr_nvrm_error *error)
{
	struct nvrm_gpu_id_info info = {.gpu_id = gpu_id};

	if (rm_control(client, "GPU_GET_ID_INFO_V2", client->handle, NVRM_CTRL_GPU_GET_ID_INFO_V2,
		       &info, sizeof(info), error))
		return -1;

	*instance = info.device_instance;
	return 0;
}

/*
 * Find a GPU by its RM device instance, or, where wanted is given, by its PCI address. Minor,
 * instance and PCI address are three independent numberings, which only the card list joins.
 */
static int find_card(struct gdr_nvrm *client, const struct gdr_nvrm_gpu *wanted, uint32_t *instance,
		     struct gdr_nvrm_gpu *gpu, struct gdr_nvrm_error *error)
{
	struct nvrm_card_list list = {0};
	const uint32_t no_status = 0;
	int i;

	if (rm_ioctl(client, "CARD_INFO", NVRM_IOCTL_CARD_INFO, &list, &no_status, error))
		return -1;

	for (i = 0; i < NVRM_MAX_CARDS; i++) {
		const struct nvrm_card_info *card = &list.card[i];
		uint32_t found;

		if (!card->valid)
			continue;
		if (wanted && (card->domain != wanted->pci_domain || card->bus != wanted->pci_bus ||
			       card->slot != wanted->pci_slot))
			continue;
		/* A GPU that this container may not use is listed all the same: pass over it. */
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

	return fail(error, "CARD_INFO (this GPU is not listed)", ENODEV, 0);
}

static int open_node(uint32_t minor, struct gdr_nvrm_error *error)
{
	char call[] = "open /dev/nvidia4294967295";
	const char *path = call + strlen("open ");
	int fd;

	snprintf(call, sizeof(call), "open /dev/nvidia%u", minor);
	fd = gdr_private_open(path, O_RDWR);
	if (fd < 0)
		return fail(error, call, errno, 0);
	return fd;
}

static int alloc_object(struct gdr_nvrm *client, const char *call, uint32_t parent,
			uint32_t class_id, const void *params, uint32_t params_size,
			uint32_t *handle, struct gdr_nvrm_error *error)
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

#define INSTANCE_FILE "/proc/driver/nvidia/capabilities/gpu%u/mig/gi%u/access"
#define MAX_INSTANCES 15

/* The node that gives the right to a MIG instance, opened: its number is in a file. */
static int open_capability(uint32_t minor, uint32_t gpu_instance, struct gdr_nvrm_error *error)
{
	char call[sizeof(error->call)], text[128] = "";
	const char *path = call + strlen("open ");
	unsigned int number;
	ssize_t got;
	int fd;

	snprintf(call, sizeof(call), "open " INSTANCE_FILE, minor, gpu_instance);
	fd = gdr_private_open(path, O_RDONLY);
	if (fd < 0)
		return fail(error, call, errno, 0);
	got = read(fd, text, sizeof(text) - 1);
	gdr_private_close(fd);
	if (got < 0 || sscanf(text, "DeviceFileMinor: %u", &number) != 1)
		return fail(error, call, EIO, 0);

	snprintf(call, sizeof(call), "open /dev/nvidia-caps/nvidia-cap%u", number);
	fd = gdr_private_open(path, O_RDONLY);
	return fd < 0 ? fail(error, call, errno, 0) : fd;
}

/*
 * Memory of a MIG instance can be taken into a device alone that is subscribed to the instance. RM
 * keeps a descriptor of the capability itself.
 */
static int subscribe(struct gdr_nvrm *client, const struct device *device,
		     struct gdr_nvrm_error *error)
{
	struct nvrm_subdevice_params subdevice = {0};
	struct nvrm_instance_params instance = {.id = device->gpu_instance};
	uint32_t handle;
	int ret, capability = open_capability(device->gpu.minor, device->gpu_instance, error);

	if (capability < 0)
		return -1;
	instance.capability = (uint64_t)capability;
	ret = alloc_object(client, "RM_ALLOC (subdevice)", device->handle, NVRM_CLASS_SUBDEVICE,
			   &subdevice, sizeof(subdevice), &handle, error);
	if (!ret)
		ret = alloc_object(client, "RM_ALLOC (MIG instance)", handle, NVRM_CLASS_INSTANCE,
				   &instance, sizeof(instance), &handle, error);
	gdr_private_close(capability);
	return ret;
}

/* Fill in the rest of a device whose GPU and instance are set, with the client's lock held. */
static int device_make(struct gdr_nvrm *client, struct device *device, struct gdr_nvrm_error *error)
{
	struct nvrm_device_params params = {
		.device_instance = device->instance,
		.client_share = client->handle,
	};
	struct gdr_nvrm_error ignored;

	device->node = open_node(device->gpu.minor, error);
	if (device->node < 0)
		return -1;
	if (alloc_object(client, "RM_ALLOC (device)", client->handle, NVRM_CLASS_DEVICE, &params,
			 sizeof(params), &device->handle, error))
		goto close_node;
	if (device->gpu_instance != NVRM_NO_INSTANCE && subscribe(client, device, error)) {
		if (error->error != ENOMEM)
			error->obstacle = &foreign_instance;
		goto free_device;
	}
	return 0;

free_device:
	rm_free(client, client->handle, device->handle, &ignored);
close_node:
	gdr_private_close(device->node);
	return -1;
}

/* The client's device of a GPU or a MIG instance, made if need be; NULL with *error filled in. */
static const struct device *device_get(struct gdr_nvrm *client, uint32_t instance,
				       uint32_t gpu_instance, const struct gdr_nvrm_gpu *known,
				       struct gdr_nvrm_error *error)
{
	struct device *device;

	pthread_mutex_lock(&client->lock);
	for (device = client->devices; device; device = device->next)
		if (device->instance == instance && device->gpu_instance == gpu_instance)
			goto out;

	device = calloc(1, sizeof(*device));
	if (!device) {
		fail(error, "malloc", ENOMEM, 0);
		goto out;
	}
	device->instance = instance;
	device->gpu_instance = gpu_instance;
	if (known)
		device->gpu = *known;
	if ((!known && find_card(client, NULL, &instance, &device->gpu, error)) ||
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

/* The protected PCIe mode counts: the driver then says that the feature is off. */
static bool is_confidential(struct gdr_nvrm *client)
{
	struct nvrm_confidential answer = {0};
	struct gdr_nvrm_error ignored;
	uint32_t object, size = sizeof(answer);
	int ret;

	pthread_mutex_lock(&client->lock);
	ret = alloc_object(client, "RM_ALLOC (confidential computing)", client->handle,
			   NVRM_CLASS_CONFIDENTIAL, NULL, 0, &object, &ignored);
	pthread_mutex_unlock(&client->lock);
	if (ret)
		return false;
	ret = rm_control_grown(client, "GET_CONFIDENTIAL", object, NVRM_CTRL_GET_CONFIDENTIAL,
			       &answer, &size, NVRM_CONFIDENTIAL_OLD_SIZE, &ignored);
	rm_free(client, client->handle, object, &ignored);
	return !ret && (answer.feature || answer.multi_gpu);
}

static bool is_guest(struct gdr_nvrm *client, const struct device *device)
{
	struct nvrm_virtualization answer = {0};
	struct gdr_nvrm_error ignored;
	uint32_t size = sizeof(answer);

	return !rm_control_grown(client, "GET_VIRTUALIZATION", device->handle,
				 NVRM_CTRL_GET_VIRTUALIZATION, &answer, &size,
				 NVRM_VIRTUALIZATION_OLD_SIZE, &ignored) &&
	       answer.mode == NVRM_VIRTUALIZATION_GUEST;
}

/* Whether a GPU (NULL: each that this process may use) is a virtual one. */
static bool is_virtual(struct gdr_nvrm *client, const struct gdr_nvrm_gpu *wanted)
{
	struct gdr_nvrm_error ignored;
	const struct device *device;
	struct gdr_nvrm_gpu gpu;
	uint32_t instance;
	bool found = false;

	if (wanted) {
		if (find_card(client, wanted, &instance, &gpu, &ignored))
			return false;
		device = device_get(client, instance, NVRM_NO_INSTANCE, &gpu, &ignored);
		return device && is_guest(client, device);
	}
	for (instance = 0; instance < NVRM_MAX_CARDS; instance++) {
		device = device_get(client, instance, NVRM_NO_INSTANCE, NULL, &ignored);
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

/* A question about no descriptor: one of the wrong size is refused in another way. */
static bool tells_instances(struct gdr_nvrm *client)
{
	struct nvrm_export_info info = {.fd = -1};
	struct gdr_nvrm_error error;

	return rm_control(client, "GET_EXPORT_OBJECT_INFO", client->handle,
			  NVRM_CTRL_GET_EXPORT_OBJECT_INFO, &info, sizeof(info), &error) &&
	       error.status == NVRM_STATUS_INVALID_PARAMETER;
}

bool gdr_nvrm_split(struct gdr_nvrm *client, const struct gdr_nvrm_gpu *wanted)
{
	struct gdr_nvrm_error ignored;
	struct gdr_nvrm_gpu gpu;
	uint32_t instance;

	return !find_card(client, wanted, &instance, &gpu, &ignored) && has_instances(gpu.minor);
}

const struct gdr_nvrm_obstacle *gdr_nvrm_find_obstacle(struct gdr_nvrm *client,
						       const struct gdr_nvrm_gpu *gpu)
{
	if (is_confidential(client))
		return &confidential;
	if (is_virtual(client, gpu))
		return &guest;
	if (gpu && gdr_nvrm_split(client, gpu) && !tells_instances(client))
		return &nameless_instance;
	return NULL;
}

static const struct device *device_of(struct gdr_nvrm *client, uint32_t handle)
{
	const struct device *device;

	pthread_mutex_lock(&client->lock);
	for (device = client->devices; device->handle != handle; device = device->next)
		;
	pthread_mutex_unlock(&client->lock);
	return device;
}

/* After a call that RM refused for no want of memory or of a right. */
static void explain(struct gdr_nvrm *client, const struct device *device,
		    struct gdr_nvrm_error *error)
{
	if (!error->status || error->error == ENOMEM || error->error == EACCES)
		return;
	if (is_confidential(client))
		error->obstacle = &confidential;
	else if (is_guest(client, device))
		error->obstacle = &guest;
	else if (has_instances(device->gpu.minor) && !tells_instances(client))
		error->obstacle = &nameless_instance;
}

static int object_nbytes(struct gdr_nvrm *client, uint32_t object, uint64_t *nbytes,
			 struct gdr_nvrm_error *error)
{
	struct nvrm_surface_entry entry = {.index = NVRM_SURFACE_SIZE};
	struct nvrm_surface_info info = {.count = 1, .entries = (uintptr_t)&entry};

	if (rm_control(client, "GET_SURFACE_INFO", object, NVRM_CTRL_GET_SURFACE_INFO, &info,
		       sizeof(info), error))
		return -1;

	*nbytes = (uint64_t)entry.value * NVRM_SURFACE_SIZE_UNIT;
	return 0;
}

/* The last step of import and duplicate: the object is in the client, so learn its size. */
static int memory_finish(struct gdr_nvrm *client, const struct device *device, uint32_t object,
			 struct gdr_nvrm_memory *memory, struct gdr_nvrm_error *error)
{
	struct gdr_nvrm_error ignored;

	memory->gpu = device->gpu;
	memory->device = device->handle;
	memory->object = object;

	if (object_nbytes(client, object, &memory->nbytes, error)) {
		rm_free(client, device->handle, object, &ignored);
		return -1;
	}
	if (!memory->nbytes) {
		rm_free(client, device->handle, object, &ignored);
		return fail(error, "GET_SURFACE_INFO (memory of no bytes)", EIO, 0);
	}
	return 0;
}

/* Which GPU exported memory is on, and in which MIG instance, as far as the driver tells. */
static int export_info(struct gdr_nvrm *client, int fd, struct nvrm_export_info *info,
		       struct gdr_nvrm_error *error)
{
	uint32_t size = sizeof(*info);

	*info = (struct nvrm_export_info){.fd = fd};
	if (rm_control_grown(client, "GET_EXPORT_OBJECT_INFO", client->handle,
			     NVRM_CTRL_GET_EXPORT_OBJECT_INFO, info, &size,
			     NVRM_EXPORT_INFO_OLD_SIZE, error))
		return -1;
	if (size == NVRM_EXPORT_INFO_OLD_SIZE)
		info->gpu_instance = NVRM_NO_INSTANCE;
	return 0;
}

int gdr_nvrm_import(struct gdr_nvrm *client, int fd, struct gdr_nvrm_memory *memory,
		    struct gdr_nvrm_error *error)
{
	struct nvrm_import import = {.fd = fd, .count = 1};
	struct nvrm_export_info info;
	const struct device *device;
	struct gdr_nvrm_error ignored;

	if (export_info(client, fd, &info, error))
		return -1;

	device = device_get(client, info.device_instance, info.gpu_instance, NULL, error);
	if (!device)
		return -1;

	import.parent = device->handle;
	import.objects[0] = new_handle(client);
	if (rm_control(client, "IMPORT_OBJECTS_FROM_FD", client->handle,
		       NVRM_CTRL_IMPORT_OBJECTS_FROM_FD, &import, sizeof(import), error)) {
		explain(client, device, error);
		return -1;
	}

	if (import.types[0] != NVRM_OBJECT_VIDEO_MEMORY) {
		rm_free(client, device->handle, import.objects[0], &ignored);
		return fail(error, "IMPORT_OBJECTS_FROM_FD (not GPU memory)", EOPNOTSUPP, 0);
	}
	return memory_finish(client, device, import.objects[0], memory, error);
}

int gdr_nvrm_duplicate(struct gdr_nvrm *client, const struct gdr_nvrm_gpu *wanted, int sibling,
		       const struct gdr_ipc_info *source, struct gdr_nvrm_memory *memory,
		       struct gdr_nvrm_error *error)
{
	struct nvrm_dup dup = {
		.client = client->handle,
		.source_client = source->client,
		.source_object = source->object,
	};
	struct nvrm_export_info info = {.gpu_instance = NVRM_NO_INSTANCE};
	const struct device *device;
	struct gdr_nvrm_gpu gpu;
	uint32_t instance;

	if (find_card(client, wanted, &instance, &gpu, error) ||
	    (sibling >= 0 && export_info(client, sibling, &info, error)))
		return -1;

	device = device_get(client, instance, info.gpu_instance, &gpu, error);
	if (!device)
		return -1;

	dup.parent = device->handle;
	dup.object = new_handle(client);
	if (rm_ioctl(client, "RM_DUP_OBJECT", NVRM_IOCTL_DUP, &dup, &dup.status, error)) {
		explain(client, device, error);
		return -1;
	}

	return memory_finish(client, device, dup.object, memory, error);
}

int gdr_nvrm_release(struct gdr_nvrm *client, const struct gdr_nvrm_memory *memory,
		     struct gdr_nvrm_error *error)
{
	return rm_free(client, memory->device, memory->object, error);
}

static int rm_unmap(struct gdr_nvrm *client, const struct gdr_nvrm_mapping *mapping,
		    struct gdr_nvrm_error *error)
{
	struct nvrm_unmap arg = {
		.client = client->handle,
		.device = mapping->device,
		.memory = mapping->object,
		.linear = mapping->linear,
	};

	return rm_ioctl(client, "RM_UNMAP_MEMORY", NVRM_IOCTL_UNMAP, &arg, &arg.status, error);
}

int gdr_nvrm_map(struct gdr_nvrm *client, const struct gdr_nvrm_memory *memory, uint64_t offset,
		 size_t nbytes, bool readonly, void *at, struct gdr_nvrm_mapping *mapping,
		 struct gdr_nvrm_error *error)
{
	struct gdr_nvrm_error ignored;
	struct nvrm_map arg = {
		.client = client->handle,
		.device = memory->device,
		.memory = memory->object,
		.offset = gdr_map_pages(&mapping->map, offset, nbytes),
		.length = mapping->map.length,
	};
	int ret;

	/* A descriptor carries one mapping, and may be closed once mmap has it. */
	arg.fd = open_node(memory->gpu.minor, error);
	if (arg.fd < 0)
		return -1;

	ret = rm_ioctl(client, "RM_MAP_MEMORY", NVRM_IOCTL_MAP, &arg, &arg.status, error);
	if (ret) {
		explain(client, device_of(client, memory->device), error);
		goto close_node;
	}

	mapping->device = memory->device;
	mapping->object = memory->object;
	mapping->linear = arg.linear;

	ret = gdr_map_fd(&mapping->map, arg.fd, 0, offset, readonly, at);
	if (ret) {
		ret = fail(error, "mmap", -ret, 0);
		rm_unmap(client, mapping, &ignored);
	}

close_node:
	gdr_private_close(arg.fd);
	return ret;
}

int gdr_nvrm_unmap(struct gdr_nvrm *client, struct gdr_nvrm_mapping *mapping,
		   struct gdr_nvrm_error *error)
{
	/* RM leaves the page tables alone: pages still mapped here would outlive the object. */
	int ret = gdr_map_undo(&mapping->map);

	if (ret)
		return fail(error, "munmap", -ret, 0);
	return rm_unmap(client, mapping, error);
}
