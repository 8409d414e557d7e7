/* SPDX-License-Identifier: MIT */
/* The client of an engine, with everything in it that does not belong to a caller. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "engine/methods.h"
#include "engine/private.h"

#define MOST_CLASSES 512

/* Of each kind, newest first. */
static const uint32_t channel_classes[] = {0xca6f, 0xc96f, 0xc86f, 0xc56f, 0xc46f, 0};
static const uint32_t copy_classes[] = {0xcab5, 0xc9b5, 0xc8b5, 0xc7b5, 0xc6b5, 0xc5b5, 0};
static const uint32_t doorbell_classes[] = {0xc761, 0xc661, 0xc561, 0xc461, 0};

static int refuse(struct core_error *error, const char *reason)
{
	return core_fail(error, CORE_FAILED_UNAVAILABLE, EOPNOTSUPP,
			 "the copy engine cannot be used: %s", reason);
}

static uint32_t newest(const uint32_t *wanted, const uint32_t *classes, uint32_t count)
{
	for (; *wanted; wanted++)
		for (uint32_t i = 0; i < count; i++)
			if (classes[i] == *wanted)
				return *wanted;
	return 0;
}

static int choose_classes(struct core_link *link, uint32_t *doorbell, struct core_error *error)
{
	uint32_t classes[MOST_CLASSES];
	struct nvrm_class_list list = {0};

	if (core_rm_control(link->client, "GPU_GET_CLASSLIST", link->device->handle,
			    NVRM_CTRL_GET_CLASSES, &list, sizeof(list), error))
		return -1;
	if (list.count > MOST_CLASSES)
		return refuse(error, "the driver lists more classes than gdrpy expects");
	list.classes = (uintptr_t)classes;
	if (core_rm_control(link->client, "GPU_GET_CLASSLIST", link->device->handle,
			    NVRM_CTRL_GET_CLASSES, &list, sizeof(list), error))
		return -1;
	link->channel_class = newest(channel_classes, classes, list.count);
	link->copy_class = newest(copy_classes, classes, list.count);
	*doorbell = newest(doorbell_classes, classes, list.count);
	if (!link->channel_class || !link->copy_class || !*doorbell)
		return refuse(error, "this GPU is older than Turing, or not known to gdrpy");
	return 0;
}

/*
 * Take an engine that neither graphics nor CUDA's copies use, or else one that graphics does not.
 * An engine that is absent or not usable is refused by the driver.
 */
static int choose_engine(struct core_link *link, struct core_error *error)
{
	bool found = false;

	for (uint32_t i = 0; i < NVRM_ENGINES_MAX; i++) {
		struct nvrm_ce_caps caps = {.engine = NVRM_ENGINE_TYPE(i)};

		if (core_rm_control(link->client, "CE_GET_CAPS", link->subdevice,
				    NVRM_CTRL_GET_CE_CAPS, &caps, sizeof(caps), error) ||
		    caps.caps[0] & NVRM_CE_GRAPHICS || (found && caps.caps[0] & NVRM_CE_SHARED))
			continue;
		found = true;
		link->engine = caps.engine;
		link->index = i;
		if (!(caps.caps[0] & NVRM_CE_SHARED))
			break;
	}
	return found ? 0 : refuse(error, "the GPU shows no copy engine besides the graphics one's");
}

static int make_space(struct core_link *link, struct core_error *error)
{
	uint64_t zeros[32] = {0};
	union {
		struct nvrm_virtual_memory_params params;
		uint64_t room[32];
	} memory = {0};

	if (core_link_alloc(link, "RM_ALLOC (address space)", link->device->handle,
			    NVRM_CLASS_ADDRESS_SPACE, zeros, &link->address_space, error))
		return -1;
	memory.params.address_space = link->address_space;
	return core_link_alloc(link, "RM_ALLOC (virtual memory)", link->device->handle,
			       NVRM_CLASS_VIRTUAL_MEMORY, &memory, &link->virtual_memory, error);
}

static int make_scratch(struct core_link *link, struct core_error *error)
{
	const size_t nbytes = 2 * core_page_nbytes();

	link->scratch.host = core_link_host(nbytes, error);
	return link->scratch.host ? core_link_register(link, link->scratch.host, nbytes, false,
						       &link->scratch, error)
				  : -1;
}

/*
 * From Hopper on, a ring through BAR0 may overtake stores to GPU memory, which go through BAR1: the
 * GPU would look for work before there is any, and not look again. A ring through BAR1 stays behind
 * them.
 */
static int make_doorbell(struct core_link *link, uint32_t class_id, struct core_error *error)
{
	struct nvrm_usermode_params params = {.bar1 = 1};
	struct core_rm_memory memory = {
		.gpu = link->device->gpu,
		.nbytes = CORE_DOORBELL_NBYTES,
		.device = link->device->handle,
	};

	if (core_link_alloc(link, "RM_ALLOC (doorbell)", link->subdevice, class_id,
			    class_id >= NVRM_USERMODE_WITH_PARAMS ? &params : NULL, &memory.object,
			    error) ||
	    core_rm_map(link->client, &memory, 0, CORE_DOORBELL_NBYTES, false, NULL,
			&link->doorbell_map, error))
		return -1;
	link->doorbell =
		(volatile uint32_t *)((char *)link->doorbell_map.map.address + CORE_DOORBELL);
	return 0;
}

static int find_device(struct core_link *link, const struct core_rm_gpu *wanted,
		       struct core_error *error)
{
	const struct core_rm_obstacle *obstacle = core_rm_find_obstacle(link->client, wanted);
	const uint32_t no_status = 0;
	struct core_rm_gpu gpu;
	uint32_t instance;
	int control = link->client->control;

	if (obstacle)
		return refuse(error, obstacle->reason);
	if (core_rm_split(link->client, wanted))
		return refuse(error, "the GPU is split into MIG instances");
	if (core_rm_find_card(link->client, wanted, &instance, &gpu, error))
		return -1;
	link->device = core_rm_device(link->client, instance, NVRM_NO_INSTANCE, &gpu, error);
	if (!link->device)
		return -1;
	/* The node takes calls for this client from now on. */
	return core_rm_call_on(link->device->node, "REGISTER_FD", NVRM_IOCTL_REGISTER_FD, &control,
			       &no_status, error);
}

static int make(struct core_link *link, const struct core_rm_gpu *gpu, struct core_error *error)
{
	uint64_t zeros[32] = {0};
	uint32_t doorbell = 0;

	return find_device(link, gpu, error) ||
			       core_link_alloc(link, "RM_ALLOC (subdevice)", link->device->handle,
					       NVRM_CLASS_SUBDEVICE, zeros, &link->subdevice,
					       error) ||
			       choose_classes(link, &doorbell, error) ||
			       choose_engine(link, error) || make_space(link, error) ||
			       make_scratch(link, error) || make_doorbell(link, doorbell, error) ||
			       !core_link_channel(link, CORE_CHANNEL_SMALL, error)
		       ? -1
		       : 0;
}

struct core_link *core_link_open(const struct core_rm_gpu *gpu, struct core_error *error)
{
	struct core_link *link = calloc(1, sizeof(*link));

	if (!link)
		return core_fail_malloc_null(error);
	link->users = 1;
	pthread_mutex_init(&link->lock, NULL);
	if (core_rm_open(&link->client, error)) {
		free(link);
		return NULL;
	}
	if (make(link, gpu, error) || core_link_check(link, error)) {
		core_link_close(link);
		return NULL;
	}
	return link;
}

void core_link_keep(struct core_link *link)
{
	__atomic_add_fetch(&link->users, 1, __ATOMIC_RELAXED);
}

/* The driver frees everything with the client, but leaves the CPU's page tables alone. */
void core_link_close(struct core_link *link)
{
	struct core_error ignored;

	if (__atomic_sub_fetch(&link->users, 1, __ATOMIC_ACQ_REL))
		return;
	for (int i = 0; i < CORE_CHANNELS; i++)
		if (link->channels[i].map.map.base)
			core_rm_unmap(link->client, &link->channels[i].map, &ignored);
	if (link->doorbell_map.map.base)
		core_rm_unmap(link->client, &link->doorbell_map, &ignored);
	core_rm_close(link->client);
	core_events_close(link);
	for (int i = 0; i < CORE_CHANNELS; i++)
		if (link->channels[i].semaphore_page.host)
			munmap(link->channels[i].semaphore_page.host, 2 * core_page_nbytes());
	if (link->scratch.host)
		munmap(link->scratch.host, 2 * core_page_nbytes());
	free(link);
}

/* An engine that did not answer may do so late, to memory that is used for something else then. */
void core_link_end(struct core_link *link)
{
	for (int i = 0; i < CORE_CHANNELS; i++)
		if (link->ready[i] == &link->channels[i])
			core_channel_close(link->ready[i]);
	core_link_close(link);
}
