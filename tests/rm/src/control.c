/* SPDX-License-Identifier: MIT */
#include "control.h"

#include <stdbool.h>
#include <string.h>

#include "abi.h"
#include "channel.h"
#include "fault.h"
#include "machine.h"
#include "user.h"

#define SURFACE_ITEMS_MAX 64

static uint32_t gpu_get_id_info(struct client *client, struct object *object, void *params)
{
	struct rm_gpu_id_info *info = params;

	(void)client;
	(void)object;
	for (uint32_t instance = 0; instance < machine()->devices; instance++) {
		if (machine_gpu_id(instance) != info->gpu_id)
			continue;
		*info = (struct rm_gpu_id_info){
			.gpu_id = info->gpu_id,
			.device_instance = instance,
			.gpu_instance = instance,
			.numa_id = -1,
		};
		return RM_OK;
	}
	return RM_INVALID_ARGUMENT;
}

static uint32_t get_export_object_info(struct client *client, struct object *object, void *params)
{
	struct rm_export_info *info = params;
	uint32_t instance, status = memory_device(info->fd, &instance);
	uint32_t at_mig = fact(FACT_AT_EXPORT_INFO_GPU_INSTANCE);
	char *bytes = params;

	(void)client;
	(void)object;
	if (status)
		return status;
	info->device_instance = instance;
	memset(info->rest, 0, fact(FACT_SIZE_EXPORT_INFO) - offsetof(struct rm_export_info, rest));
	if (at_mig != FACT_ABSENT)
		memcpy(bytes + at_mig, &machine()->mig_instance, sizeof(uint32_t));
	bytes[fact(FACT_AT_EXPORT_INFO_MAX_OBJECTS)] = 1;
	bytes[fact(FACT_AT_EXPORT_INFO_METADATA)] = 4;
	return RM_OK;
}

static uint32_t get_confidential(struct client *client, struct object *object, void *params)
{
	struct rm_confidential *answer = params;

	(void)client;
	(void)object;
	memset(answer, 0, fact(FACT_SIZE_CONFIDENTIAL));
	answer->gpus = RM_CONFIDENTIAL_HOPPER;
	if (machine()->confidential && !machine()->protected_pcie)
		answer->feature = RM_CONFIDENTIAL_HOPPER;
	if (machine()->protected_pcie && fact(FACT_AT_CONFIDENTIAL_MULTI_GPU) != FACT_ABSENT)
		answer->multi_gpu = RM_CONFIDENTIAL_PROTECTED_PCIE;
	return RM_OK;
}

static uint32_t get_virtualization(struct client *client, struct object *object, void *params)
{
	struct rm_virtualization *answer = params;

	(void)client;
	(void)object;
	answer->mode = machine()->guest ? RM_VIRTUALIZATION_GUEST : 0;
	return RM_OK;
}

static uint32_t import(struct client *client, int fd, uint32_t parent, uint32_t *handle)
{
	struct memory memory;
	uint32_t status = memory_hold(fd, &memory);

	return status ? status : rm_adopt_memory(client, parent, handle, &memory);
}

static uint32_t import_objects_from_fd(struct client *client, struct object *object, void *params)
{
	struct rm_import_many *call = params;
	uint32_t status;

	(void)object;
	if (call->count > RM_IMPORT_MAX)
		return RM_INVALID_PARAMETER;
	if (call->count + call->index > 1)
		return RM_OUT_OF_RANGE;
	if (!call->count)
		return RM_OK;
	status = import(client, call->fd, call->parent, &call->objects[0]);
	if (!status)
		call->types[0] = RM_IMPORT_VIDEO_MEMORY;
	return status;
}

static uint32_t get_surface_info(struct client *client, struct object *object, void *params)
{
	const struct rm_surface_info *call = params;
	struct rm_surface_item items[SURFACE_ITEMS_MAX];
	size_t size = call->count * sizeof(items[0]);
	uint64_t bytes = object->memory.size;

	(void)client;
	if (!call->count || call->count > SURFACE_ITEMS_MAX)
		return RM_INVALID_ARGUMENT;
	if (copy_from_user(items, call->list, size))
		return RM_INVALID_ADDRESS;
	for (uint32_t i = 0; i < call->count; i++) {
		if (items[i].index > 31 || !(fact(FACT_SURFACE_ANSWERED) >> items[i].index & 1))
			return RM_INVALID_ARGUMENT;
		switch (items[i].index) {
		case RM_SURFACE_SIZE_LOW:
			items[i].value = bytes;
			break;
		case RM_SURFACE_SIZE_HIGH:
			items[i].value = bytes >> 32;
			break;
		case RM_SURFACE_SIZE_IN_4K:
			items[i].value = bytes >> 12;
			break;
		default:
			return RM_INVALID_ARGUMENT;
		}
	}
	return copy_to_user(call->list, items, size) ? RM_INVALID_ADDRESS : RM_OK;
}

enum target {
	ON_CLIENT,
	ON_DEVICE,
	ON_OBJECT,
	ON_CONFIDENTIAL,
	ON_SUBDEVICE,
	ON_CHANNEL,
	ON_GROUP,
};

struct command {
	const char *name;
	enum fact number;
	enum fact size;
	enum target target;
	uint32_t (*serve)(struct client *client, struct object *object, void *params);
	uint32_t (*serve_part)(struct client *client, struct part *part, void *params);
};

static const struct command commands[] = {
	{"GPU_GET_ID_INFO", FACT_CTRL_GPU_GET_ID_INFO_V2, FACT_SIZE_GPU_ID_INFO, ON_CLIENT,
	 gpu_get_id_info, NULL},
	{"GET_EXPORT_OBJECT_INFO", FACT_CTRL_GET_EXPORT_OBJECT_INFO, FACT_SIZE_EXPORT_INFO,
	 ON_CLIENT, get_export_object_info, NULL},
	{"IMPORT_OBJECTS_FROM_FD", FACT_CTRL_IMPORT_OBJECTS_FROM_FD, FACT_SIZE_IMPORT, ON_CLIENT,
	 import_objects_from_fd, NULL},
	{"GET_SURFACE_INFO", FACT_CTRL_GET_SURFACE_INFO, FACT_SIZE_SURFACE_INFO, ON_OBJECT,
	 get_surface_info, NULL},
	{"GET_CONFIDENTIAL", FACT_CTRL_GET_CONFIDENTIAL, FACT_SIZE_CONFIDENTIAL, ON_CONFIDENTIAL,
	 get_confidential, NULL},
	{"GET_VIRTUALIZATION", FACT_CTRL_GET_VIRTUALIZATION, FACT_SIZE_VIRTUALIZATION, ON_DEVICE,
	 get_virtualization, NULL},
	{"CLASS_LIST", FACT_CTRL_CLASS_LIST, FACT_SIZE_CLASS_LIST, ON_DEVICE, NULL, class_list},
	{"COPY_CAPS", FACT_CTRL_COPY_CAPS, FACT_SIZE_COPY_CAPS, ON_SUBDEVICE, NULL, copy_caps},
	{"BIND", FACT_CTRL_BIND, FACT_SIZE_BIND, ON_CHANNEL, NULL, bind_engine},
	{"SCHEDULE", FACT_CTRL_SCHEDULE, FACT_SIZE_SCHEDULE, ON_CHANNEL, NULL, schedule},
	{"SCHEDULE", FACT_CTRL_GROUP_SCHEDULE, FACT_SIZE_GROUP_SCHEDULE, ON_GROUP, NULL, schedule},
	{"SET_TIMESLICE", FACT_CTRL_SET_TIMESLICE, FACT_SIZE_TIMESLICE, ON_GROUP, NULL,
	 set_timeslice},
	{"GET_TIMESLICE", FACT_CTRL_GET_TIMESLICE, FACT_SIZE_TIMESLICE, ON_GROUP, NULL,
	 get_timeslice},
	{"TOKEN", FACT_CTRL_TOKEN, FACT_SIZE_TOKEN, ON_CHANNEL, NULL, get_token},
};

static const struct command *find_command(uint32_t number)
{
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		if (fact(commands[i].number) == number)
			return &commands[i];
	return NULL;
}

static bool is_target(const struct client *client, enum target target, uint32_t handle)
{
	struct device *device;

	switch (target) {
	case ON_CLIENT:
		return handle == client->handle;
	case ON_DEVICE:
		return device_find(client, handle);
	case ON_OBJECT:
		return object_find(client, handle, &device);
	case ON_CONFIDENTIAL:
		return handle == client->confidential;
	case ON_SUBDEVICE:
		device = device_of(client, handle);
		return device && device->subdevice == handle;
	case ON_CHANNEL:
		return part_find(client, handle, PART_CHANNEL, &device);
	case ON_GROUP:
		return part_find(client, handle, PART_GROUP, &device);
	}
	return false;
}

uint32_t serve_control(const struct open_node *node, void *argument)
{
	const struct rm_control *call = argument;
	const struct command *command = find_command(call->command);
	struct client *client = rm_client_on(node, call->client);
	struct device *device = NULL;
	struct object *object;
	union {
		struct rm_import_many largest;
		char bytes[sizeof(struct rm_import_many)];
	} params;
	uint32_t status, size;

	if (!client)
		return RM_INVALID_CLIENT;
	if (!client_has_handle(client, call->object))
		return RM_OBJECT_NOT_FOUND;
	object = object_find(client, call->object, &device);
	if (!command || !is_target(client, command->target, call->object))
		return RM_NOT_SUPPORTED;
	size = fact(command->size);
	if (call->flags || call->params_size != size)
		return RM_INVALID_ARGUMENT;
	if (copy_from_user(params.bytes, call->params, size))
		return RM_INVALID_ADDRESS;
	status = fault_take(command->name);
	if (!status && command->serve_part)
		status = command->serve_part(client, part_find_any(client, call->object, &device),
					     params.bytes);
	else if (!status)
		status = command->serve(client, object, params.bytes);
	if (copy_to_user(call->params, params.bytes, size))
		return RM_INVALID_ADDRESS;
	return status;
}
