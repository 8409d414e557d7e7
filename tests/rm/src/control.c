/* SPDX-License-Identifier: MIT */
#include "control.h"

#include <stdbool.h>
#include <string.h>

#include "abi.h"
#include "fault.h"
#include "machine.h"
#include "user.h"

#define NO_MIG_INSTANCE 0xFFFFFFFFu
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

	(void)client;
	(void)object;
	if (status)
		return status;
	*info = (struct rm_export_info){
		.fd = info->fd,
		.device_instance = instance,
		.gpu_instance_id = NO_MIG_INSTANCE,
		.max_objects = 1,
		.metadata = {4},
	};
	return RM_OK;
}

static uint32_t import(struct client *client, int fd, uint32_t parent, uint32_t *handle)
{
	struct memory memory;
	uint32_t status = memory_hold(fd, &memory);

	return status ? status : rm_adopt_memory(client, parent, handle, &memory);
}

static uint32_t import_object_from_fd(struct client *client, struct object *object, void *params)
{
	struct rm_import_one *call = params;

	(void)object;
	if (call->type != RM_EXPORT_TYPE_OBJECT)
		return RM_INVALID_PARAMETER;
	return import(client, call->fd, call->parent, &call->object);
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

struct command {
	const char *name;
	uint32_t number;
	uint32_t size;
	bool on_object; /* on a memory object; else on the client */
	uint32_t (*serve)(struct client *client, struct object *object, void *params);
};

static const struct command commands[] = {
	{"GPU_GET_ID_INFO", RM_CMD_GPU_GET_ID_INFO, sizeof(struct rm_gpu_id_info), false,
	 gpu_get_id_info},
	{"GET_EXPORT_OBJECT_INFO", RM_CMD_GET_EXPORT_OBJECT_INFO, sizeof(struct rm_export_info),
	 false, get_export_object_info},
	{"IMPORT_OBJECT_FROM_FD", RM_CMD_IMPORT_OBJECT_FROM_FD, sizeof(struct rm_import_one), false,
	 import_object_from_fd},
	{"IMPORT_OBJECTS_FROM_FD", RM_CMD_IMPORT_OBJECTS_FROM_FD, sizeof(struct rm_import_many),
	 false, import_objects_from_fd},
	{"GET_SURFACE_INFO", RM_CMD_GET_SURFACE_INFO, sizeof(struct rm_surface_info), true,
	 get_surface_info},
};

static const struct command *find_command(uint32_t number)
{
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		if (commands[i].number == number)
			return &commands[i];
	return NULL;
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
	uint32_t status;

	if (!client)
		return RM_INVALID_CLIENT;
	if (!client_has_handle(client, call->object))
		return RM_OBJECT_NOT_FOUND;
	object = object_find(client, call->object, &device);
	if (!command || (command->on_object ? !object : call->object != client->handle))
		return RM_NOT_SUPPORTED;
	if (call->flags || call->params_size != command->size)
		return RM_INVALID_ARGUMENT;
	if (copy_from_user(params.bytes, call->params, command->size))
		return RM_INVALID_ADDRESS;
	status = fault_take(command->name);
	if (!status)
		status = command->serve(client, object, params.bytes);
	if (copy_to_user(call->params, params.bytes, command->size))
		return RM_INVALID_ADDRESS;
	return status;
}
