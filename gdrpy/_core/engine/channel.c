/* SPDX-License-Identifier: MIT */
/* Channels of the copy engine: their objects, and their ring in GPU memory. */
#include <sys/mman.h>

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

/* The driver takes a notifier as an object, of which it is the first bytes: a page is enough. */
static int make_host(struct core_link *link, struct core_channel *channel, struct core_error *error)
{
	const size_t page = core_page_nbytes();
	char *host = core_link_host(2 * page, error);

	if (!host)
		return -1;
	if (core_link_register(link, host, page, false, &channel->semaphore_page, error))
		goto unmap;
	if (core_link_register(link, host + page, page, false, &channel->notifier_page, error))
		goto unregister;
	channel->semaphore = (const volatile uint32_t *)host;
	channel->notifier = (const volatile struct nvrm_notification *)channel->notifier_page.host;
	return 0;

unregister:
	core_link_unregister(link, &channel->semaphore_page);
	channel->semaphore_page = (struct core_span){0};
unmap:
	munmap(host, 2 * page);
	return -1;
}

static void drop_host(struct core_link *link, struct core_channel *channel)
{
	core_link_unregister(link, &channel->notifier_page);
	core_link_unregister(link, &channel->semaphore_page);
	munmap(channel->semaphore_page.host, 2 * core_page_nbytes());
	channel->semaphore_page = (struct core_span){0};
}

/* A polite channel is in a group, which has a time slice. */
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

static uint32_t parent_of(const struct core_link *link, const struct core_channel *channel)
{
	return channel->group ? channel->group : link->device->handle;
}

/* Make and start the channel, in its group or alone, with a copy object. */
static int make_inside(struct core_link *link, struct core_channel *channel,
		       struct core_error *error)
{
	struct nvrm_channel_params params = {
		.error_notifier = channel->notifier_page.object,
		.ring_va = channel->control.va,
		.ring_entries = CORE_RING_ENTRIES,
		.flags = NVRM_CHANNEL_DENY_PHYSICAL,
		.address_space = channel->group ? 0 : link->address_space,
		.userd_memory = {channel->control.object},
		.userd_offset = {CORE_PAGE},
		.engine = link->engine,
	};
	struct nvrm_copy_params copy = {.version = 1, .engine = link->engine};
	struct core_error ignored;
	uint32_t parent = parent_of(link, channel), object;

	if (core_link_alloc(link, "RM_ALLOC (channel)", parent, link->channel_class, &params,
			    &channel->handle, error))
		return -1;
	if (core_link_alloc(link, "RM_ALLOC (copy object)", channel->handle, link->copy_class,
			    &copy, &object, error) ||
	    (channel->group ? start_group(link, channel->group, error)
			    : start_alone(link, channel->handle, error)) ||
	    core_rm_control(link->client, "GET_WORK_SUBMIT_TOKEN", channel->handle,
			    NVRM_CTRL_GET_TOKEN, &channel->token, sizeof(channel->token), error)) {
		core_rm_free(link->client, parent, channel->handle, &ignored);
		return -1;
	}
	return 0;
}

static void drop_group(struct core_link *link, struct core_channel *channel)
{
	struct core_error ignored;

	if (channel->group)
		core_rm_free(link->client, link->device->handle, channel->group, &ignored);
	channel->group = 0;
}

static int make_objects(struct core_link *link, struct core_channel *channel, bool polite,
			struct core_error *error)
{
	if (polite && make_group(link, &channel->group, error))
		return -1;
	if (!make_inside(link, channel, error))
		return 0;
	drop_group(link, channel);
	return -1;
}

int core_channel_open(struct core_link *link, struct core_channel *channel, bool polite,
		      struct core_error *error)
{
	channel->link = link;
	pthread_mutex_init(&channel->lock, NULL);
	if (make_host(link, channel, error))
		return -1;
	if (make_control(link, channel, error))
		goto drop_host;
	if (!make_objects(link, channel, polite, error))
		return 0;
	drop_control(link, channel);
drop_host:
	drop_host(link, channel);
	return -1;
}

void core_channel_close(struct core_channel *channel)
{
	struct core_link *link = channel->link;
	struct core_error ignored;

	core_rm_free(link->client, parent_of(link, channel), channel->handle, &ignored);
	drop_group(link, channel);
	drop_control(link, channel);
	drop_host(link, channel);
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
		bool made = !core_channel_open(link, &link->channels[use], use == CORE_CHANNEL_BULK,
					       error);

		if (made)
			channel = &link->channels[use];
		else if (use == CORE_CHANNEL_BULK)
			channel = link->ready[CORE_CHANNEL_SMALL];
		if (made || core_is_refusal(error))
			__atomic_store_n(&link->ready[use], channel, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&link->lock);
	return channel;
}
