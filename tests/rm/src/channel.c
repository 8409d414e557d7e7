/* SPDX-License-Identifier: MIT */
#include "channel.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "control.h"
#include "engine.h"
#include "event.h"
#include "fault.h"
#include "machine.h"
#include "user.h"

#define PARAMS_MAX 512
#define ENGINES 5
#define DEFAULT_TIMESLICE 1024
#define CHANNEL_DENY_PHYSICAL (1u << 7)

/* GRCE, SHARED, SYSMEM, P2P and large blocks, as an H100 says. */
static const uint8_t engine_caps[ENGINES] = {0xE3, 0xE3, 0xE2, 0xE2, 0xE0};

#define CLASSES_MAX 32

/* A GPU has one class of copy object; older channel and usermode classes stay beside its own. */
static const struct gpu {
	const char *name;
	uint32_t channel, copy, usermode;
} gpus[] = {
	{"hopper", RM_CLASS_CHANNEL, RM_CLASS_COPY, RM_CLASS_USERMODE},
	{"turing", 0xC46F, 0xC5B5, 0xC461},
	{"ga100", 0xC56F, 0xC6B5, 0xC561},
	{"ada", 0xC56F, 0xC7B5, 0xC561},
	{"gb100", 0xC96F, 0xC9B5, RM_CLASS_USERMODE},
	{"gb20x", 0xCA6F, 0xCAB5, 0xC761},
};

static const uint32_t channel_classes[] = {0xC36F, 0xC46F, 0xC56F, 0xC86F, 0xC96F, 0xCA6F};
static const uint32_t usermode_classes[] = {0xC361, 0xC461, 0xC561, 0xC661, 0xC761};
static const uint32_t other_classes[] = {
	RM_CLASS_LOCAL_MEMORY, RM_CLASS_VIRTUAL, RM_CLASS_USER_MEMORY,	 RM_CLASS_DEVICE,
	RM_CLASS_SUBDEVICE,    RM_CLASS_GROUP,	 RM_CLASS_ADDRESS_SPACE,
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const struct gpu *the_gpu(void)
{
	const char *name = getenv("FAKE_RM_GPU");

	for (size_t i = 0; name && i < COUNT(gpus); i++)
		if (!strcmp(name, gpus[i].name))
			return &gpus[i];
	return &gpus[0];
}

static bool has_copy_class(void)
{
	return !getenv("FAKE_RM_NO_COPY");
}

static uint32_t list_classes(uint32_t *classes)
{
	const struct gpu *gpu = the_gpu();
	uint32_t count = COUNT(other_classes);

	memcpy(classes, other_classes, sizeof(other_classes));
	for (size_t i = 0; i < COUNT(usermode_classes); i++)
		if (usermode_classes[i] <= gpu->usermode)
			classes[count++] = usermode_classes[i];
	if (has_copy_class())
		classes[count++] = gpu->copy;
	for (size_t i = 0; i < COUNT(channel_classes); i++)
		if (channel_classes[i] <= gpu->channel)
			classes[count++] = channel_classes[i];
	return count;
}

static bool engine_exists(uint32_t engine)
{
	return engine >= RM_ENGINE_COPY0 && engine < RM_ENGINE_COPY0 + ENGINES;
}

/* A size of 0 says that the kernel knows it. */
static uint32_t take_params(const struct rm_alloc *alloc, char *params, size_t size)
{
	memset(params, 0, PARAMS_MAX);
	if (alloc->params_size && alloc->params_size != size)
		return RM_INVALID_ARGUMENT;
	return copy_from_user(params, alloc->params, size) ? RM_INVALID_ADDRESS : RM_OK;
}

static bool is_zero(const char *bytes, size_t from, size_t to)
{
	while (from < to)
		if (bytes[from++])
			return false;
	return true;
}

/* Make a part of what has been checked. */
static uint32_t adopt(struct client *client, struct device *device, struct rm_alloc *alloc,
		      enum part_kind kind, struct part **part)
{
	uint32_t status = rm_choose_handle(client, &alloc->new_handle);

	if (status)
		return status;
	*part = part_add(device, alloc->new_handle, alloc->parent, kind);
	return *part ? RM_OK : RM_NO_MEMORY;
}

static bool address_space_exists(const struct client *client, const struct device *device,
				 uint32_t handle)
{
	struct device *of;

	return !handle || (part_find(client, handle, PART_ADDRESS_SPACE, &of) && of == device);
}

static uint32_t alloc_address_space(struct client *client, struct device *device,
				    struct rm_alloc *alloc, const char *params)
{
	struct part *part;

	if (!is_zero(params, 0, fact(FACT_SIZE_ADDRESS_SPACE_PARAMS)))
		return RM_INVALID_ARGUMENT;
	return adopt(client, device, alloc, PART_ADDRESS_SPACE, &part);
}

static uint32_t alloc_virtual(struct client *client, struct device *device, struct rm_alloc *alloc,
			      const char *params)
{
	struct rm_virtual_params call;
	struct part *part;
	uint32_t status;

	memcpy(&call, params, sizeof(call));
	if (call.offset || call.limit)
		return RM_INVALID_ARGUMENT;
	if (!address_space_exists(client, device, call.address_space))
		return RM_OBJECT_NOT_FOUND;
	status = adopt(client, device, alloc, PART_VIRTUAL, &part);
	if (!status)
		part->address_space = call.address_space;
	return status;
}

static uint32_t adopt_memory(struct client *client, struct device *device, uint32_t parent,
			     uint32_t *handle, struct memory *memory)
{
	struct object *object = NULL;
	uint32_t status = rm_choose_handle(client, handle);

	if (!status)
		object = object_add(device, *handle, memory);
	if (!object) {
		memory_release(memory);
		return status ? status : RM_NO_MEMORY;
	}
	object->parent = parent;
	return RM_OK;
}

static uint32_t alloc_local_memory(struct client *client, struct device *device,
				   struct rm_alloc *alloc, const char *params)
{
	uint64_t size = get64(params, FACT_AT_MEMORY_PARAMS_SIZE), page = getpagesize();
	struct memory memory;
	uint32_t status;

	/* Stricter than the driver, which knows many more kinds: contiguous, in 4 KiB pages. */
	if (get32(params, FACT_AT_MEMORY_PARAMS_OWNER) != client->handle ||
	    get32(params, FACT_AT_MEMORY_PARAMS_ATTRIBUTES) != (2u << 27 | 1u << 23) ||
	    get32(params, FACT_AT_MEMORY_PARAMS_TYPE) ||
	    get32(params, FACT_AT_MEMORY_PARAMS_FLAGS) ||
	    get32(params, FACT_AT_MEMORY_PARAMS_ATTRIBUTES2) ||
	    get64(params, FACT_AT_MEMORY_PARAMS_ALIGNMENT) % page || !size)
		return RM_INVALID_ARGUMENT;
	if (size > 1ull << 30)
		return RM_NO_MEMORY;
	if (machine()->mig_instance != NO_MIG_INSTANCE && !device->subscription)
		return RM_OBJECT_NOT_FOUND;
	size = (size + page - 1) & ~(page - 1);
	status = memory_new(MEMORY_LOCAL, device->instance, size, &memory);
	return status ? status
		      : adopt_memory(client, device, alloc->parent, &alloc->new_handle, &memory);
}

static uint32_t alloc_usermode(struct client *client, struct device *device, struct rm_alloc *alloc)
{
	char params[PARAMS_MAX] = {0};
	struct memory memory;
	uint32_t status = RM_OK;

	/* Until Hopper there was nothing to say. */
	if (alloc->params && the_gpu()->usermode >= RM_CLASS_USERMODE)
		status = take_params(alloc, params, fact(FACT_SIZE_USERMODE_PARAMS));
	else if (alloc->params || alloc->params_size)
		status = RM_INVALID_ARGUMENT;
	if (!status && (params[fact(FACT_AT_USERMODE_PARAMS_PRIVILEGED)] ||
			params[fact(FACT_AT_USERMODE_PARAMS_BAR1)] & ~1))
		status = RM_INVALID_ARGUMENT;
	if (!status)
		status = memory_new(MEMORY_USERMODE, device->instance, RM_USERMODE_SIZE, &memory);
	/* From Hopper on, stores through BAR0 may overtake earlier ones through BAR1. */
	if (!status)
		memory.unordered = the_gpu()->usermode >= RM_CLASS_USERMODE &&
				   !params[fact(FACT_AT_USERMODE_PARAMS_BAR1)];
	return status ? status
		      : adopt_memory(client, device, alloc->parent, &alloc->new_handle, &memory);
}

static uint32_t alloc_group(struct client *client, struct device *device, struct rm_alloc *alloc,
			    const char *params)
{
	uint32_t space = get32(params, FACT_AT_GROUP_PARAMS_ADDRESS_SPACE);
	uint32_t engine = get32(params, FACT_AT_GROUP_PARAMS_ENGINE);
	struct part *part;

	if (get32(params, FACT_AT_GROUP_PARAMS_ERROR) ||
	    get32(params, FACT_AT_GROUP_PARAMS_ECC_ERROR) ||
	    !is_zero(params, 16, fact(FACT_SIZE_GROUP_PARAMS)) || !engine_exists(engine))
		return RM_INVALID_ARGUMENT;
	if (!address_space_exists(client, device, space))
		return RM_OBJECT_NOT_FOUND;
	TRY(adopt(client, device, alloc, PART_GROUP, &part));
	part->address_space = space;
	part->engine = engine;
	part->timeslice = DEFAULT_TIMESLICE;
	return RM_OK;
}

static const struct object *memory_on(const struct client *client, const struct device *device,
				      uint32_t handle)
{
	struct device *of;
	struct object *object = object_find(client, handle, &of);

	return object && of == device && object->memory.kind != MEMORY_USERMODE ? object : NULL;
}

/* Whether another channel's USERD is in the same page of the same memory. */
static bool userd_in_use(const struct client *client, const struct channel_setup *setup);

static uint32_t check_channel(const struct client *client, const struct device *device,
			      const struct part *group, const char *params,
			      struct channel_setup *setup)
{
	const struct object *userd, *error;
	uint32_t at_engine = fact(FACT_AT_CHANNEL_PARAMS_ENGINE);

	*setup = (struct channel_setup){
		.group = group ? group->handle : 0,
		.address_space = get32(params, FACT_AT_CHANNEL_PARAMS_ADDRESS_SPACE),
		.engine = get32(params, FACT_AT_CHANNEL_PARAMS_ENGINE),
		.error = get32(params, FACT_AT_CHANNEL_PARAMS_ERROR),
		.userd = get32(params, FACT_AT_CHANNEL_PARAMS_USERD),
		.userd_offset = get64(params, FACT_AT_CHANNEL_PARAMS_USERD_OFFSET),
		.ring = get64(params, FACT_AT_CHANNEL_PARAMS_RING),
		.entries = get32(params, FACT_AT_CHANNEL_PARAMS_ENTRIES),
	};
	if (get32(params, FACT_AT_CHANNEL_PARAMS_FLAGS) != CHANNEL_DENY_PHYSICAL)
		return RM_INVALID_FLAGS;
	if (get32(params, FACT_AT_CHANNEL_PARAMS_BUFFER) ||
	    get32(params, FACT_AT_CHANNEL_PARAMS_CONTEXT_SHARE) || !engine_exists(setup->engine) ||
	    !is_zero(params, at_engine + 4, fact(FACT_SIZE_CHANNEL_PARAMS)))
		return RM_INVALID_ARGUMENT;
	if (group && (setup->address_space || setup->engine != group->engine))
		return RM_INVALID_ARGUMENT;
	if (!address_space_exists(client, device, setup->address_space))
		return RM_OBJECT_NOT_FOUND;
	if (group)
		setup->address_space = group->address_space;
	if (setup->ring % 8 || setup->ring >> 40 || setup->entries < 2 ||
	    setup->entries & (setup->entries - 1))
		return RM_INVALID_ARGUMENT;
	userd = memory_on(client, device, setup->userd);
	if (!userd)
		return RM_OBJECT_NOT_FOUND;
	if (setup->userd_offset % RM_USERD_SIZE ||
	    setup->userd_offset + RM_USERD_SIZE > userd->memory.size)
		return RM_INVALID_ARGUMENT;
	error = setup->error ? memory_on(client, device, setup->error) : NULL;
	if (setup->error && (!error || error->memory.read_only))
		return RM_INVALID_OBJECT_HANDLE;
	return userd_in_use(client, setup) ? RM_STATE_IN_USE : RM_OK;
}

static uint32_t alloc_channel(struct client *client, struct device *device, struct rm_alloc *alloc,
			      const char *params)
{
	struct device *of;
	struct part *group = part_find(client, alloc->parent, PART_GROUP, &of), *part;
	struct channel_setup setup;
	uint32_t status = check_channel(client, device, group, params, &setup);

	if (status)
		return status;
	if (machine()->mig_instance != NO_MIG_INSTANCE && !device->subscription)
		return RM_INVALID_STATE;
	if (machine()->guest || machine()->confidential)
		return RM_NOT_SUPPORTED;
	TRY(adopt(client, device, alloc, PART_CHANNEL, &part));
	setup.client = client;
	setup.device = device;
	setup.handle = part->handle;
	part->address_space = setup.address_space;
	part->engine = setup.engine;
	part->channel = engine_start(&setup);
	if (!part->channel) {
		part_free(device, part);
		return RM_NO_MEMORY;
	}
	if (group && group->scheduled)
		engine_schedule(part->channel, true);
	return RM_OK;
}

static uint32_t alloc_copy(struct client *client, struct device *device, struct rm_alloc *alloc,
			   const char *params)
{
	struct device *of;
	struct part *channel = part_find(client, alloc->parent, PART_CHANNEL, &of), *part;
	struct rm_copy_params call;

	memcpy(&call, params, sizeof(call));
	if (call.version != 1 || call.engine != channel->engine)
		return RM_INVALID_ARGUMENT;
	if (!has_copy_class())
		return RM_INVALID_CLASS;
	TRY(adopt(client, device, alloc, PART_COPY, &part));
	part->engine = call.engine;
	engine_set_class(channel->channel, alloc->class);
	return RM_OK;
}

static uint32_t alloc_event(struct client *client, struct device *device, struct rm_alloc *alloc,
			    const char *params)
{
	struct rm_event_params call;
	struct part *part;
	uint32_t engine;

	memcpy(&call, params, sizeof(call));
	engine = (call.index & 0xFFFF) - RM_NOTIFIER_COPY0 + RM_ENGINE_COPY0;
	if ((call.client && call.client != client->handle) || call.source != alloc->parent ||
	    call.class != RM_CLASS_EVENT ||
	    (call.index & ~0xFFFFu) != RM_EVENT_NONSTALL_WITHOUT_DATA || !engine_exists(engine))
		return RM_INVALID_ARGUMENT;
	if (call.data > INT32_MAX || !event_of_client(call.data, client->handle))
		return RM_INVALID_PARAMETER;
	TRY(adopt(client, device, alloc, PART_EVENT, &part));
	part->engine = engine;
	part->fd = call.data;
	return RM_OK;
}

enum parent {
	UNDER_DEVICE,
	UNDER_SUBDEVICE,
	UNDER_DEVICE_OR_GROUP,
	UNDER_CHANNEL,
};

static const struct {
	uint32_t class;
	const char *name;
	enum parent parent;
	enum fact size;
	uint32_t (*alloc)(struct client *client, struct device *device, struct rm_alloc *alloc,
			  const char *params);
} makers[] = {
	{RM_CLASS_ADDRESS_SPACE, "ADDRESS_SPACE", UNDER_DEVICE, FACT_SIZE_ADDRESS_SPACE_PARAMS,
	 alloc_address_space},
	{RM_CLASS_VIRTUAL, "VIRTUAL", UNDER_DEVICE, FACT_SIZE_VIRTUAL_PARAMS, alloc_virtual},
	{RM_CLASS_LOCAL_MEMORY, "LOCAL_MEMORY", UNDER_DEVICE, FACT_SIZE_MEMORY_PARAMS,
	 alloc_local_memory},
	{RM_CLASS_GROUP, "GROUP", UNDER_DEVICE, FACT_SIZE_GROUP_PARAMS, alloc_group},
	{RM_CLASS_CHANNEL, "CHANNEL", UNDER_DEVICE_OR_GROUP, FACT_SIZE_CHANNEL_PARAMS,
	 alloc_channel},
	{RM_CLASS_COPY, "COPY", UNDER_CHANNEL, FACT_SIZE_COPY_PARAMS, alloc_copy},
	{RM_CLASS_EVENT, "EVENT", UNDER_SUBDEVICE, FACT_SIZE_EVENT_PARAMS, alloc_event},
	{RM_CLASS_USERMODE, "USERMODE", UNDER_SUBDEVICE, FACT_SIZE_USERMODE_PARAMS, NULL},
};

/* What this GPU has in place of Hopper's. */
static uint32_t own_class(uint32_t class)
{
	switch (class) {
	case RM_CLASS_CHANNEL:
		return the_gpu()->channel;
	case RM_CLASS_COPY:
		return the_gpu()->copy;
	case RM_CLASS_USERMODE:
		return the_gpu()->usermode;
	default:
		return class;
	}
}

/* The device, if the parent is one that the class can have. */
static struct device *device_for(const struct client *client, uint32_t handle, enum parent parent)
{
	struct device *device;

	switch (parent) {
	case UNDER_DEVICE:
		return device_find(client, handle);
	case UNDER_SUBDEVICE:
		device = device_of(client, handle);
		return device && device->subdevice == handle ? device : NULL;
	case UNDER_DEVICE_OR_GROUP:
		return part_find(client, handle, PART_GROUP, &device) ? device
								      : device_find(client, handle);
	case UNDER_CHANNEL:
		return part_find(client, handle, PART_CHANNEL, &device) ? device : NULL;
	}
	return NULL;
}

uint32_t channel_alloc(const struct open_node *node, struct rm_alloc *alloc)
{
	struct client *client = rm_client_on(node, alloc->root);
	char params[PARAMS_MAX];
	struct device *device;
	uint32_t status;

	for (size_t i = 0; i < COUNT(makers); i++) {
		if (own_class(makers[i].class) != alloc->class)
			continue;
		TRY(fault_take(makers[i].name));
		if (!client)
			return RM_INVALID_CLIENT;
		device = device_for(client, alloc->parent, makers[i].parent);
		if (!device)
			return RM_INVALID_OBJECT_PARENT;
		if (!makers[i].alloc)
			return alloc_usermode(client, device, alloc);
		status = take_params(alloc, params, fact(makers[i].size));
		return status ? status : makers[i].alloc(client, device, alloc, params);
	}
	return RM_INVALID_CLASS;
}

uint32_t serve_user_memory(const struct open_node *node, void *argument)
{
	struct rm_user_memory *call = argument;
	struct client *client = rm_client_on(node, call->root);
	struct device *device;
	struct memory memory;
	uint32_t coherency = RM_USER_MEMORY_COHERENCY(call->flags);

	if (node->node.kind != NODE_DEVICE)
		return RM_INVALID_ARGUMENT;
	if (!client)
		return RM_INVALID_CLIENT;
	device = device_find(client, call->parent);
	if (!device)
		return RM_INVALID_OBJECT_PARENT;
	if (call->class != RM_CLASS_USER_MEMORY)
		return RM_INVALID_CLASS;
	if (RM_USER_MEMORY_LOCATION(call->flags) ||
	    RM_USER_MEMORY_MAPPING(call->flags) != RM_USER_MEMORY_NO_MAP ||
	    (coherency != 0 && coherency != 1 && coherency != 5) ||
	    !(call->flags & RM_USER_MEMORY_NONCONTIGUOUS) ||
	    call->flags & ~RM_USER_MEMORY_KNOWN_FLAGS)
		return RM_INVALID_FLAGS;
	if (call->address % getpagesize())
		return RM_NOT_SUPPORTED;
	if (call->limit == UINT64_MAX || call->address + call->limit < call->address)
		return RM_INVALID_LIMIT;
	if (ledger_has_view_in(call->address, call->limit + 1))
		return RM_INVALID_ADDRESS; /* a device's pages, not the kernel's */
	TRY(memory_of_user(call->address, call->limit + 1, call->flags & RM_USER_MEMORY_READ_ONLY,
			   &memory));
	memory.device_instance = device->instance;
	return adopt_memory(client, device, device->handle, &call->new_handle, &memory);
}

uint32_t serve_register_fd(const struct open_node *node, void *argument)
{
	struct open_node control;
	int32_t fd;

	memcpy(&fd, argument, sizeof(fd));
	if (!node_of_fd(fd, &control) || control.node.kind != NODE_CONTROL ||
	    file_is(&control.file, &node->file))
		return RM_INVALID_ARGUMENT;
	return ledger_register(&node->file, &control.file) ? RM_INVALID_STATE : RM_OK;
}

uint32_t class_list(struct client *client, struct part *part, void *params)
{
	struct rm_class_list *call = params;
	uint32_t classes[CLASSES_MAX], count = list_classes(classes);

	(void)client;
	(void)part;
	if (call->list) {
		if (call->count < count)
			return RM_INVALID_ARGUMENT;
		if (copy_to_user(call->list, classes, count * sizeof(classes[0])))
			return RM_INVALID_ADDRESS;
	}
	call->count = count;
	return RM_OK;
}

uint32_t copy_caps(struct client *client, struct part *part, void *params)
{
	struct rm_copy_caps *call = params;

	(void)client;
	(void)part;
	if (!engine_exists(call->engine))
		return RM_NOT_SUPPORTED;
	call->caps[0] = engine_caps[call->engine - RM_ENGINE_COPY0];
	call->caps[1] = 0x03;
	return RM_OK;
}

uint32_t bind_engine(struct client *client, struct part *part, void *params)
{
	uint32_t engine;

	(void)client;
	memcpy(&engine, params, sizeof(engine));
	if (engine != part->engine)
		return RM_INVALID_ARGUMENT;
	if (engine_is_bound(part->channel))
		return RM_INVALID_STATE;
	engine_bind(part->channel);
	return RM_OK;
}

uint32_t schedule(struct client *client, struct part *part, void *params)
{
	enum fact size = part->kind == PART_GROUP ? FACT_SIZE_GROUP_SCHEDULE : FACT_SIZE_SCHEDULE;
	const char *bytes = params;
	struct part *channel;
	struct device *device;

	if (bytes[0] & ~1 || !is_zero(bytes, 1, fact(size)))
		return RM_INVALID_ARGUMENT;
	if (part->kind == PART_CHANNEL) {
		if (!engine_is_bound(part->channel))
			return RM_INVALID_STATE;
		engine_schedule(part->channel, bytes[0]);
		return RM_OK;
	}
	part_find_any(client, part->handle, &device);
	part->scheduled = bytes[0];
	for (channel = device->parts; channel; channel = channel->next)
		if (channel->kind == PART_CHANNEL && channel->parent == part->handle)
			engine_schedule(channel->channel, bytes[0]);
	return RM_OK;
}

uint32_t set_timeslice(struct client *client, struct part *part, void *params)
{
	uint64_t us;

	(void)client;
	memcpy(&us, params, sizeof(us));
	if (!us)
		return RM_INVALID_ARGUMENT;
	part->timeslice = us;
	return RM_OK;
}

uint32_t get_timeslice(struct client *client, struct part *part, void *params)
{
	(void)client;
	memcpy(params, &part->timeslice, sizeof(part->timeslice));
	return RM_OK;
}

uint32_t get_token(struct client *client, struct part *part, void *params)
{
	uint32_t token = engine_token(part->channel);

	(void)client;
	memcpy(params, &token, sizeof(token));
	return RM_OK;
}

static bool userd_in_use(const struct client *client, const struct channel_setup *setup)
{
	for (struct device *device = client->devices; device; device = device->next)
		for (struct part *part = device->parts; part; part = part->next)
			if (part->channel && engine_has_userd(part->channel, setup))
				return true;
	return false;
}

void channels_forget_memory(struct device *device, uint32_t memory)
{
	for (struct part *part = device->parts; part; part = part->next)
		if (part->channel)
			engine_forget_memory(part->channel, memory);
}
