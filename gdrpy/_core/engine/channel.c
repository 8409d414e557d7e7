/* SPDX-License-Identifier: MIT */
/* Channels of the copy engine: their objects, and their ring in GPU memory. */
#include <string.h>

#include "engine/methods.h"
#include "engine/private.h"

/* A page of ring, a page of USERD, the pushbuffer, and a page that check.c copies to and from. */
#define USED_NBYTES (3 * CORE_PAGE + CORE_RING_ENTRIES * CORE_PUSH_NBYTES)
#define CONTROL_NBYTES ((USED_NBYTES + CORE_ANY_PAGE - 1) / CORE_ANY_PAGE * CORE_ANY_PAGE)

/* Other processes' channels on the engine wait this long for a large copy, not 1 ms. */
#define BULK_SLICE_US 50

static int make_control(struct core_link *link, struct core_channel *channel,
			struct core_error *error)
{
	struct nvrm_gpu_memory_params params = {
		.owner = link->client->handle,
		.attributes = NVRM_GPU_MEMORY_CONTIGUOUS_4K,
		.size = CONTROL_NBYTES,
		.alignment = CORE_PAGE,
	};
	struct core_rm_memory memory = {
		.gpu = link->device->gpu,
		.nbytes = CONTROL_NBYTES,
		.device = link->device->handle,
	};
	struct core_error ignored;

	if (core_link_alloc(link, "RM_ALLOC (GPU memory)", memory.device, NVRM_CLASS_GPU_MEMORY,
			    &params, &memory.object, error))
		return -1;
	if (core_link_map(link, memory.object, CONTROL_NBYTES, 0, &channel->control.va, error))
		goto free_memory;
	if (core_rm_map(link->client, &memory, 0, CONTROL_NBYTES, false, NULL, &channel->map,
			error))
		goto unmap;
	channel->control.object = memory.object;
	channel->control.host = channel->map.map.address;
	for (size_t i = 0; i < 2 * CORE_PAGE; i += sizeof(uint64_t))
		*(volatile uint64_t *)(channel->control.host + i) = 0;
	return 0;

unmap:
	channel->map = (struct core_rm_mapping){0};
	core_link_unmap(link, memory.object, channel->control.va, &ignored);
free_memory:
	core_rm_free(link->client, memory.device, memory.object, &ignored);
	return -1;
}

static void drop_control(struct core_link *link, struct core_channel *channel)
{
	struct core_error ignored;

	core_rm_unmap(link->client, &channel->map, &ignored);
	channel->map = (struct core_rm_mapping){0};
	core_link_unmap(link, channel->control.object, channel->control.va, &ignored);
	core_rm_free(link->client, link->device->handle, channel->control.object, &ignored);
}

/* Large copies have a channel in a group, which has a time slice. */
static int make_group(struct core_link *link, uint32_t *group, struct core_error *error)
{
	struct nvrm_group_params params = {
		.address_space = link->address_space,
		.engine = link->engine,
	};

	return core_link_alloc(link, "RM_ALLOC (channel group)", link->device->handle,
			       NVRM_CLASS_CHANNEL_GROUP, &params, group, error);
}

static int start_group(struct core_link *link, uint32_t group, struct core_error *error)
{
	struct nvrm_schedule schedule = {.enable = 1};
	uint32_t size = sizeof(schedule);
	uint64_t microseconds = BULK_SLICE_US;

	if (core_rm_control(link->client, "SET_TIMESLICE", group, NVRM_CTRL_SET_TIME_SLICE,
			    &microseconds, sizeof(microseconds), error))
		return -1;
	return core_rm_control_grown(link->client, "SCHEDULE (group)", group,
				     NVRM_CTRL_SCHEDULE_GROUP, &schedule, &size,
				     NVRM_SCHEDULE_OLD_SIZE, error);
}

static int start_alone(struct core_link *link, uint32_t channel, struct core_error *error)
{
	struct nvrm_schedule schedule = {.enable = 1};
	uint32_t size = sizeof(schedule), engine = link->engine;

	if (core_rm_control(link->client, "BIND", channel, NVRM_CTRL_BIND, &engine, sizeof(engine),
			    error))
		return -1;
	return core_rm_control_grown(link->client, "SCHEDULE", channel, NVRM_CTRL_SCHEDULE,
				     &schedule, &size, NVRM_SCHEDULE_OLD_SIZE, error);
}

/* The channel in its parent, with a copy object; it is started as its use requires. */
static int make_inside(struct core_link *link, struct core_channel *channel,
		       enum core_channel_use use, uint32_t parent, struct core_error *error)
{
	struct nvrm_channel_params params = {
		.error_notifier = link->notifiers[use].object,
		.ring_va = channel->control.va,
		.ring_entries = CORE_RING_ENTRIES,
		.flags = NVRM_CHANNEL_DENY_PHYSICAL,
		.address_space = use == CORE_CHANNEL_BULK ? 0 : link->address_space,
		.userd_memory = {channel->control.object},
		.userd_offset = {CORE_PAGE},
		.engine = link->engine,
	};
	struct nvrm_copy_params copy = {.version = 1, .engine = link->engine};
	struct core_error ignored;
	uint32_t handle, object;

	if (core_link_alloc(link, "RM_ALLOC (channel)", parent, link->channel_class, &params,
			    &handle, error))
		return -1;
	if (core_link_alloc(link, "RM_ALLOC (copy object)", handle, link->copy_class, &copy,
			    &object, error) ||
	    (use == CORE_CHANNEL_BULK ? start_group(link, parent, error)
				      : start_alone(link, handle, error)) ||
	    core_rm_control(link->client, "GET_WORK_SUBMIT_TOKEN", handle, NVRM_CTRL_GET_TOKEN,
			    &channel->token, sizeof(channel->token), error)) {
		core_rm_free(link->client, parent, handle, &ignored);
		return -1;
	}
	return 0;
}

static int make_objects(struct core_link *link, struct core_channel *channel,
			enum core_channel_use use, struct core_error *error)
{
	const uint32_t device = link->device->handle;
	struct core_error ignored;
	uint32_t group;

	if (use != CORE_CHANNEL_BULK)
		return make_inside(link, channel, use, device, error);
	if (make_group(link, &group, error))
		return -1;
	if (!make_inside(link, channel, use, group, error))
		return 0;
	core_rm_free(link->client, device, group, &ignored);
	return -1;
}

static int make_channel(struct core_link *link, enum core_channel_use use, struct core_error *error)
{
	struct core_channel *channel = &link->channels[use];
	const size_t line = 64 * (size_t)use;

	channel->link = link;
	channel->semaphore = (const volatile uint32_t *)(link->semaphores.host + line);
	channel->semaphore_va = link->semaphores.va + line;
	channel->notifier = (const volatile struct nvrm_notification *)link->notifiers[use].host;
	pthread_mutex_init(&channel->lock, NULL);
	if (make_control(link, channel, error))
		return -1;
	if (!make_objects(link, channel, use, error))
		return 0;
	drop_control(link, channel);
	return -1;
}

struct core_channel *core_link_channel(struct core_link *link, enum core_channel_use use,
				       struct core_error *error)
{
	struct core_channel *channel = __atomic_load_n(&link->ready[use], __ATOMIC_ACQUIRE);

	if (channel)
		return channel;
	pthread_mutex_lock(&link->lock);
	channel = link->ready[use];
	if (!channel) {
		bool made = !make_channel(link, use, error);

		if (made)
			channel = &link->channels[use];
		else if (use == CORE_CHANNEL_BULK)
			channel = link->ready[CORE_CHANNEL_SMALL];
		/* Only what the driver refuses for another reason than memory stays refused. */
		if (made || (error->status && error->failure != CORE_FAILED_MEMORY))
			__atomic_store_n(&link->ready[use], channel, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&link->lock);
	return channel;
}
