/* SPDX-License-Identifier: MIT */
#include "rm.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "abi.h"
#include "channel.h"
#include "clock.h"
#include "control.h"
#include "dma.h"
#include "event.h"
#include "fault.h"
#include "ledger.h"
#include "libc.h"
#include "machine.h"
#include "user.h"

static bool page_aligned(uint64_t number)
{
	return number % getpagesize() == 0;
}

struct client *rm_client_on(const struct open_node *node, uint32_t handle)
{
	struct client *client = client_find(handle);
	struct file_id control;

	return client && ledger_control_of(node, &control) && file_is(&client->file, &control)
		       ? client
		       : NULL;
}

uint32_t rm_choose_handle(const struct client *client, uint32_t *handle)
{
	if (!*handle)
		*handle = client_new_handle(client);
	else if (*handle == client->handle)
		return RM_INVALID_OBJECT_HANDLE;
	else if (client_has_handle(client, *handle))
		return RM_INSERT_DUPLICATE_NAME;
	return RM_OK;
}

uint32_t rm_adopt_memory(struct client *client, uint32_t parent, uint32_t *handle,
			 struct memory *memory)
{
	struct device *device = device_find(client, parent);
	uint32_t status;

	if (!device || device->instance != memory->device_instance)
		status = RM_INVALID_OBJECT_PARENT;
	else if (machine()->mig_instance != NO_MIG_INSTANCE && !device->subscription)
		status = RM_OBJECT_NOT_FOUND; /* of the subscription */
	else
		status = rm_choose_handle(client, handle);
	if (!status && !object_add(device, *handle, memory))
		status = RM_NO_MEMORY;
	if (status)
		memory_release(memory);
	return status;
}

static uint32_t alloc_root_client(const struct open_node *node, struct rm_alloc *alloc)
{
	struct client *client;

	TRY(fault_take("ROOT_CLIENT"));
	if (alloc->root || alloc->parent || alloc->new_handle || alloc->params ||
	    alloc->params_size)
		return RM_INVALID_ARGUMENT;
	client = client_add(&node->file);
	if (!client)
		return RM_NO_MEMORY;
	alloc->new_handle = client->handle;
	return RM_OK;
}

static uint32_t alloc_device(const struct open_node *node, struct rm_alloc *alloc)
{
	struct client *client = rm_client_on(node, alloc->root);
	struct rm_device_params params;

	TRY(fault_take("DEVICE"));
	if (!client)
		return RM_INVALID_CLIENT;
	if (alloc->parent != client->handle)
		return RM_INVALID_OBJECT_PARENT;
	if (alloc->params_size && alloc->params_size != sizeof(params))
		return RM_INVALID_ARGUMENT;
	if (copy_from_user(&params, alloc->params, sizeof(params)))
		return RM_INVALID_ADDRESS;
	if (params.device_id >= machine()->devices ||
	    (params.client_share && params.client_share != client->handle) ||
	    params.target_client || params.target_device || params.flags || params.va_size ||
	    params.va_start || params.va_limit || params.va_mode)
		return RM_INVALID_ARGUMENT;
	TRY(rm_choose_handle(client, &alloc->new_handle));
	return device_add(client, alloc->new_handle, params.device_id, params.client_share)
		       ? RM_OK
		       : RM_NO_MEMORY;
}

static uint32_t alloc_subdevice(const struct open_node *node, struct rm_alloc *alloc)
{
	struct client *client = rm_client_on(node, alloc->root);
	struct device *device = client ? device_find(client, alloc->parent) : NULL;
	uint32_t status, number;

	TRY(fault_take("SUBDEVICE"));
	if (!client)
		return RM_INVALID_CLIENT;
	if (!device || device->subdevice)
		return RM_INVALID_OBJECT_PARENT;
	/* A size of 0 says that the kernel knows it. */
	if (alloc->params_size && alloc->params_size != sizeof(number))
		return RM_INVALID_ARGUMENT;
	if (copy_from_user(&number, alloc->params, sizeof(number)))
		return RM_INVALID_ADDRESS;
	if (number)
		return RM_INVALID_ARGUMENT;
	status = rm_choose_handle(client, &alloc->new_handle);
	if (!status)
		device->subdevice = alloc->new_handle;
	return status;
}

/* The driver looks at the descriptor, not at who holds it. */
static bool gives_right(uint64_t capability, uint32_t instance)
{
	struct open_node node;

	return capability <= INT32_MAX && node_of_fd((int)capability, &node) &&
	       node.node.kind == NODE_CAPABILITY &&
	       node.node.minor == machine_capability(machine_mirror(instance));
}

static uint32_t alloc_subscription(const struct open_node *node, struct rm_alloc *alloc)
{
	struct client *client = rm_client_on(node, alloc->root);
	struct device *device = client ? client->devices : NULL;
	uint32_t status;
	struct rm_mig_params params;

	TRY(fault_take("SUBSCRIPTION"));
	if (!client)
		return RM_INVALID_CLIENT;
	while (device && (!alloc->parent || device->subdevice != alloc->parent))
		device = device->next;
	if (!device || device->subscription)
		return RM_INVALID_OBJECT_PARENT;
	if (alloc->params_size != sizeof(params))
		return RM_INVALID_ARGUMENT;
	if (copy_from_user(&params, alloc->params, sizeof(params)))
		return RM_INVALID_ADDRESS;
	if (machine()->mig_instance == NO_MIG_INSTANCE)
		return RM_NOT_SUPPORTED;
	if (params.instance != machine()->mig_instance)
		return RM_INVALID_ARGUMENT;
	if (device->share != client->handle)
		return RM_STATE_IN_USE; /* of the address space, by all instances */
	if (!gives_right(params.capability, device->instance))
		return RM_INSUFFICIENT_PERMISSIONS;
	status = rm_choose_handle(client, &alloc->new_handle);
	if (!status)
		device->subscription = alloc->new_handle;
	return status;
}

static uint32_t alloc_confidential(const struct open_node *node, struct rm_alloc *alloc)
{
	struct client *client = rm_client_on(node, alloc->root);
	uint32_t status;

	TRY(fault_take("CONFIDENTIAL"));
	if (!client)
		return RM_INVALID_CLIENT;
	if (alloc->parent != client->handle)
		return RM_INVALID_OBJECT_PARENT;
	if (alloc->params_size || client->confidential)
		return RM_INVALID_ARGUMENT;
	status = rm_choose_handle(client, &alloc->new_handle);
	if (!status)
		client->confidential = alloc->new_handle;
	return status;
}

static uint32_t serve_alloc(const struct open_node *node, void *argument)
{
	struct rm_alloc *alloc = argument;

	switch (alloc->class) {
	case RM_CLASS_ROOT_CLIENT:
		return alloc_root_client(node, alloc);
	case RM_CLASS_DEVICE:
		return alloc_device(node, alloc);
	case RM_CLASS_SUBDEVICE:
		return alloc_subdevice(node, alloc);
	case RM_CLASS_MIG_INSTANCE:
		return alloc_subscription(node, alloc);
	case RM_CLASS_CONFIDENTIAL:
		return alloc_confidential(node, alloc);
	default:
		return channel_alloc(node, alloc);
	}
}

static uint32_t serve_alloc_with_rights(const struct open_node *node, void *argument)
{
	struct rm_alloc_with_rights *wide = argument;
	struct rm_alloc alloc = {
		.root = wide->root,
		.parent = wide->parent,
		.new_handle = wide->new_handle,
		.class = wide->class,
		.params = wide->params,
		.params_size = wide->params_size,
	};
	uint32_t status;

	if (wide->rights || wide->flags)
		return RM_INVALID_ARGUMENT;
	status = serve_alloc(node, &alloc);
	wide->new_handle = alloc.new_handle;
	return status;
}

static uint32_t serve_free(const struct open_node *node, void *argument)
{
	const struct rm_free *call = argument;
	struct client *client = rm_client_on(node, call->root);
	uint32_t parent = client ? client->handle : 0;
	struct device *device;
	struct object *object = NULL;
	struct part *part;

	if (!client)
		return RM_INVALID_CLIENT;
	if (call->old == client->handle) {
		if (call->parent && call->parent != client->handle)
			return RM_INVALID_OBJECT_PARENT;
		client_free(client);
		return RM_OK;
	}
	if ((part = part_find_any(client, call->old, &device)))
		parent = part->parent;
	else if ((object = object_find(client, call->old, &device)))
		parent = object->parent;
	else if (!(device = device_find(client, call->old)) &&
		 (!call->old || call->old != client->confidential))
		return RM_OBJECT_NOT_FOUND;
	if (call->parent != parent)
		return RM_INVALID_OBJECT_PARENT;
	if (part)
		part_free(device, part);
	else if (object)
		object_free(device, object);
	else if (device)
		device_free(client, device);
	else
		client->confidential = 0;
	return RM_OK;
}

static uint32_t serve_dup_object(const struct open_node *node, void *argument)
{
	struct rm_dup_object *call = argument;
	struct client *client = rm_client_on(node, call->client);
	struct client *source = client_find(call->source_client);
	struct object *object;
	struct device *device;
	struct memory memory;

	if (!client)
		return RM_INVALID_CLIENT;
	if (call->flags)
		return RM_INVALID_FLAGS;
	/* All clients here are this process's, which by the driver's policy share their objects. */
	object = source ? object_find(source, call->source_object, &device) : NULL;
	if (source && !object)
		return RM_OBJECT_NOT_FOUND;
	TRY(object ? memory_hold_again(&object->memory, &memory)
		   : memory_hold_by_ipc(call->source_client, call->source_object, &memory));
	return rm_adopt_memory(client, call->parent, &call->new_handle, &memory);
}

/*
 * A descriptor serves one mapping in its life, as the driver never takes the mapping off an open
 * file again. The mark must live as long as the file does, so it is kept there: the sticky bit of a
 * node means nothing else.
 */
static uint32_t claim_mapping_fd(int fd, uint32_t minor, struct file_id *file)
{
	struct open_node node;
	struct stat st;

	if (!node_of_fd(fd, &node) || node.node.kind != NODE_DEVICE || node.node.minor != minor)
		return RM_INVALID_ARGUMENT;
	*file = node.file;
	if (libc()->fstat(fd, &st))
		return RM_INVALID_ARGUMENT;
	if (st.st_mode & S_ISVTX)
		return RM_STATE_IN_USE;
	return fchmod(fd, st.st_mode | S_ISVTX) ? RM_INVALID_ARGUMENT : RM_OK;
}

static uint32_t serve_map_memory(const struct open_node *node, void *argument)
{
	struct rm_map_memory *call = argument;
	struct client *client = rm_client_on(node, call->client);
	struct device *device = client ? device_find(client, call->device) : NULL;
	struct device *parent = NULL;
	struct object *object = device ? object_find(client, call->memory, &parent) : NULL;
	struct mapping *mapping;
	struct file_id file;

	if (!client)
		return RM_INVALID_CLIENT;
	if (!object)
		return RM_OBJECT_NOT_FOUND;
	if (parent != device)
		return RM_INVALID_OBJECT_PARENT;
	if (call->flags)
		return RM_INVALID_FLAGS;
	/* Stricter than the driver, whose guests may map some memory. */
	if (machine()->confidential || machine()->guest)
		return RM_NOT_SUPPORTED;
	if (object->memory.kind == MEMORY_USER)
		return RM_NOT_SUPPORTED; /* it was allocated never to be mapped */
	if (object->memory.kind == MEMORY_USERMODE &&
	    (call->offset || call->length != RM_USERMODE_SIZE))
		return RM_INVALID_LIMIT;
	if (call->offset >= object->memory.size || !page_aligned(call->offset))
		return RM_INVALID_BASE;
	if (!call->length || !page_aligned(call->length) ||
	    call->length > object->memory.size - call->offset)
		return RM_INVALID_LIMIT;
	TRY(claim_mapping_fd(call->fd, machine_mirror(device->instance), &file));
	mapping = mapping_add(object, call->offset, call->length, &file);
	if (!mapping)
		return RM_NO_MEMORY;
	call->linear = mapping->linear;
	return RM_OK;
}

static uint32_t serve_unmap_memory(const struct open_node *node, void *argument)
{
	const struct rm_unmap_memory *call = argument;
	struct client *client = rm_client_on(node, call->client);
	struct device *parent = NULL;
	struct object *object = client ? object_find(client, call->memory, &parent) : NULL;
	struct mapping *mapping = object ? mapping_find(object, call->linear) : NULL;

	if (!client)
		return RM_INVALID_CLIENT;
	if (!mapping)
		return RM_OBJECT_NOT_FOUND;
	if (call->device != parent->handle)
		return RM_INVALID_OBJECT_PARENT;
	if (call->flags)
		return RM_INVALID_FLAGS;
	mapping_free(object, mapping);
	return RM_OK;
}

static uint32_t serve_card_info(const struct open_node *node, void *argument)
{
	struct rm_card_info *info = argument;

	(void)node;
	memset(info, 0, sizeof(*info));
	for (uint32_t minor = 0; minor < machine()->devices; minor++) {
		uint32_t instance = machine_mirror(minor);

		info->cards[minor] = (struct rm_card){
			.valid = 1,
			.bus = machine_pci_bus(instance),
			.vendor = 0x10de,
			.gpu_id = machine_gpu_id(instance),
			.minor = minor,
		};
	}
	return RM_OK;
}

static uint32_t serve_check_version(const struct open_node *node, void *argument)
{
	struct rm_version *call = argument;
	bool same = !strncmp(call->text, machine()->version, sizeof(call->text));

	(void)node;
	call->reply = RM_VERSION_RECOGNIZED;
	memset(call->text, 0, sizeof(call->text));
	memcpy(call->text, machine()->version, strlen(machine()->version));
	return same || call->command == RM_VERSION_QUERY ? RM_OK : RM_INVALID_ARGUMENT;
}

struct call {
	const char *name;
	unsigned int number;
	size_t size;
	size_t status; /* where in the structure; 0 for a call that has none */
	uint32_t (*serve)(const struct open_node *node, void *argument);
	bool any_node;			/* not on the control node alone */
	enum fact size_now, status_now; /* for a size of 0: these depend on the release */
};

#define CALL_ON(any, type, code, text, server)                                                     \
	{.name = (text),                                                                           \
	 .number = (code),                                                                         \
	 .size = sizeof(struct type),                                                              \
	 .status = offsetof(struct type, status),                                                  \
	 .serve = (server),                                                                        \
	 .any_node = (any)}

#define CALL(type, code, text, server) CALL_ON(false, type, code, text, server)

static const struct call calls[] = {
	CALL(rm_alloc, RM_NR_ALLOC, "RM_ALLOC", serve_alloc),
	CALL(rm_alloc_with_rights, RM_NR_ALLOC, "RM_ALLOC", serve_alloc_with_rights),
	CALL(rm_free, RM_NR_FREE, "RM_FREE", serve_free),
	CALL(rm_control, RM_NR_CONTROL, "RM_CONTROL", serve_control),
	CALL(rm_dup_object, RM_NR_DUP_OBJECT, "RM_DUP_OBJECT", serve_dup_object),
	CALL(rm_map_memory, RM_NR_MAP_MEMORY, "RM_MAP_MEMORY", serve_map_memory),
	CALL(rm_unmap_memory, RM_NR_UNMAP_MEMORY, "RM_UNMAP_MEMORY", serve_unmap_memory),
	CALL_ON(true, rm_user_memory, RM_NR_USER_MEMORY, "RM_ALLOC_MEMORY", serve_user_memory),
	CALL_ON(true, rm_os_event, RM_NR_OS_EVENT, "OS_EVENT", serve_os_event),
	CALL_ON(true, rm_os_event, RM_NR_FREE_OS_EVENT, "FREE_OS_EVENT", serve_free_os_event),
	{.name = "RM_MAP_MEMORY_DMA",
	 .number = RM_NR_MAP_DMA,
	 .serve = serve_map_dma,
	 .size_now = FACT_SIZE_MAP_DMA,
	 .status_now = FACT_AT_MAP_DMA_STATUS},
	{.name = "RM_UNMAP_MEMORY_DMA",
	 .number = RM_NR_UNMAP_DMA,
	 .serve = serve_unmap_dma,
	 .size_now = FACT_SIZE_UNMAP_DMA,
	 .status_now = FACT_AT_UNMAP_DMA_STATUS},
	{.name = "REGISTER_FD",
	 .number = RM_NR_REGISTER_FD,
	 .size = sizeof(int32_t),
	 .serve = serve_register_fd,
	 .any_node = true},
	{.name = "CARD_INFO",
	 .number = RM_NR_CARD_INFO,
	 .size = sizeof(struct rm_card_info),
	 .serve = serve_card_info},
	{.name = "CHECK_VERSION",
	 .number = RM_NR_CHECK_VERSION,
	 .size = sizeof(struct rm_version),
	 .serve = serve_check_version},
};

static size_t size_of(const struct call *call)
{
	return call->size ? call->size : fact(call->size_now);
}

/* Where in the structure; 0 for a call that has none. */
static size_t status_of(const struct call *call)
{
	return call->size ? call->status : fact(call->status_now);
}

static const struct call *find_call(unsigned long request)
{
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		if (request == _IOC(_IOC_READ | _IOC_WRITE, RM_IOCTL_TYPE, calls[i].number,
				    size_of(&calls[i])))
			return &calls[i];
	return NULL;
}

/* 0, or a negative errno. */
static int serve_call(const struct call *call, const struct open_node *node, char *argument)
{
	uint32_t status = fault_take("ioctl");
	const bool never = false;

	if (status)
		return -status;
	if (!strcmp(call->name, "RM_UNMAP_MEMORY_DMA"))
		clock_stall(fault_take("STALL_UNMAP"), &never);
	status = fault_take(call->name);
	if (status && !status_of(call))
		return -status;
	if (!status)
		status = call->serve(node, argument);
	if (!status_of(call))
		return status ? -EINVAL : 0;
	memcpy(argument + status_of(call), &status, sizeof(status));
	return 0;
}

int rm_ioctl(const struct open_node *node, unsigned long request, uint64_t argument)
{
	const struct call *call = find_call(request);
	union {
		struct rm_card_info largest;
		char bytes[sizeof(struct rm_card_info)];
	} copy;
	int ret;

	if (!call || !ledger_is_of_this_process() ||
	    (node->node.kind != NODE_CONTROL &&
	     (node->node.kind != NODE_DEVICE || !call->any_node)))
		return -EINVAL;
	if (copy_from_user(copy.bytes, argument, size_of(call)))
		return -EFAULT;

	ledger_lock();
	ret = serve_call(call, node, copy.bytes);
	ledger_unlock();

	/* As in the driver, a refused call hands its structure back too. */
	if (copy_to_user(argument, copy.bytes, size_of(call)))
		return -EFAULT;
	return ret;
}
