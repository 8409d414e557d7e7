/* SPDX-License-Identifier: MIT */
/* Descriptors on which threads sleep until the engine interrupts, made as threads need them. */
#include <poll.h>
#include <stdlib.h>

#include "common/forks.h"
#include "engine/private.h"

static int attach(struct core_link *link, int fd, struct core_error *error)
{
	const uint32_t no_status = 0;
	struct nvrm_os_event os = {link->client->handle, link->device->handle, (uint32_t)fd, 0};
	struct nvrm_event_params params = {
		.client = link->client->handle,
		.source = link->subdevice,
		.class_id = NVRM_CLASS_EVENT,
		.index = NVRM_NOTIFIER_INTERRUPT(link->index),
		.data = (uint64_t)fd,
	};
	int control = link->client->control;
	uint32_t object;

	return core_rm_call_on(fd, "REGISTER_FD", NVRM_IOCTL_REGISTER_FD, &control, &no_status,
			       error) ||
			       core_rm_call_on(fd, "ALLOC_OS_EVENT", NVRM_IOCTL_OS_EVENT, &os,
					       &os.status, error) ||
			       core_link_alloc(link, "RM_ALLOC (event)", link->subdevice,
					       NVRM_CLASS_EVENT, &params, &object, error)
		       ? -1
		       : 0;
}

static void set_deaf(struct core_link *link)
{
	__atomic_store_n(&link->deaf, true, __ATOMIC_RELAXED);
}

static struct core_event *make(struct core_link *link)
{
	struct core_event *event = calloc(1, sizeof(*event));
	struct core_error error;

	if (!event)
		return NULL;
	event->fd = core_rm_open_node(link->device->gpu.minor, &error);
	if (event->fd >= 0 && !attach(link, event->fd, &error))
		return event;
	if (event->fd >= 0) {
		core_private_close(event->fd);
		if (error.failure != CORE_FAILED_MEMORY)
			set_deaf(link);
	}
	free(event);
	return NULL;
}

struct core_event *core_event_take(struct core_link *link)
{
	struct core_event *event;

	if (__atomic_load_n(&link->deaf, __ATOMIC_RELAXED) || link->index >= NVRM_NOTIFIERS_MAX)
		return NULL;
	pthread_mutex_lock(&link->lock);
	event = link->events;
	if (event)
		link->events = event->next;
	pthread_mutex_unlock(&link->lock);
	return event ? event : make(link);
}

void core_event_give_back(struct core_link *link, struct core_event *event)
{
	pthread_mutex_lock(&link->lock);
	event->next = link->events;
	link->events = event;
	pthread_mutex_unlock(&link->lock);
}

bool core_event_sleep(struct core_link *link, const struct core_event *event, int milliseconds)
{
	struct pollfd wanted = {.fd = event->fd, .events = POLLIN | POLLPRI};
	int ret = poll(&wanted, 1, milliseconds);

	if (ret > 0 && !(wanted.revents & wanted.events))
		set_deaf(link); /* the GPU is lost */
	return ret;		/* also after a signal, which may hide one */
}

void core_events_close(struct core_link *link)
{
	struct core_event *next;

	for (struct core_event *event = link->events; event; event = next) {
		next = event->next;
		core_private_close(event->fd);
		free(event);
	}
}
