/* SPDX-License-Identifier: MIT */
#include "event.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "abi.h"
#include "control.h"
#include "ledger.h"
#include "libc.h"

struct event {
	struct event *next;
	int fd;
	uint32_t client;
	struct open_node node;
};

static struct event *events;
static int sleepers, wakes;

static struct event *find(int fd)
{
	struct event *event = events;

	while (event && event->fd != fd)
		event = event->next;
	return event;
}

uint32_t serve_os_event(const struct open_node *node, void *argument)
{
	const struct rm_os_event *call = argument;
	struct client *client = rm_client_on(node, call->client);
	struct open_node polled;
	struct event *event;
	int ready, flags;

	if (!client)
		return RM_INVALID_CLIENT;
	/* Stricter than the driver, which takes a handle that is none. */
	if (!device_find(client, call->device))
		return RM_OBJECT_NOT_FOUND;
	if (!node_of_fd(call->fd, &polled) || !file_is(&polled.file, &node->file))
		return RM_INVALID_ARGUMENT;
	if (find(call->fd))
		return RM_STATE_IN_USE;
	event = calloc(1, sizeof(*event));
	ready = eventfd(0, 0);
	flags = fcntl(call->fd, F_GETFD);
	if (ready >= 0)
		fcntl(ready, F_SETFL, fcntl(call->fd, F_GETFL) & O_NONBLOCK);
	if (!event || ready < 0 || dup3(ready, call->fd, flags & FD_CLOEXEC ? O_CLOEXEC : 0) < 0) {
		free(event);
		if (ready >= 0)
			libc()->close(ready);
		return RM_NO_MEMORY;
	}
	libc()->close(ready);
	*event = (struct event){
		.next = events, .fd = call->fd, .client = call->client, .node = polled};
	__atomic_store_n(&events, event, __ATOMIC_RELEASE);
	return RM_OK;
}

uint32_t serve_free_os_event(const struct open_node *node, void *argument)
{
	const struct rm_os_event *call = argument;
	struct event *event = find(call->fd);

	if (!event || event->client != call->client || !file_is(&event->node.file, &node->file))
		return RM_OBJECT_NOT_FOUND;
	event->client = 0;
	return RM_OK;
}

bool event_of_client(int fd, uint32_t client)
{
	struct event *event = find(fd);

	return event && event->client == client;
}

void event_signal(int fd)
{
	uint64_t one = 1;

	if (!find(fd))
		return;
	if (fcntl(fd, F_GETFL) & O_NONBLOCK) {
		ledger_violation_add("event on descriptor %d, which is non-blocking: nobody wakes",
				     fd);
		return;
	}
	if (write(fd, &one, sizeof(one)) < 0)
		return; /* it says so already */
}

bool event_node(int fd, struct open_node *node)
{
	struct event *event = find(fd);

	if (event)
		*node = event->node;
	return event;
}

bool event_has_node(const struct file_id *file)
{
	for (struct event *event = events; event; event = event->next)
		if (file_is(&event->node.file, file))
			return true;
	return false;
}

void event_closed(int fd)
{
	for (struct event **link = &events; *link; link = &(*link)->next) {
		struct event *event = *link;

		if (event->fd != fd)
			continue;
		*link = event->next;
		free(event);
		return;
	}
}

void event_start_in_child(void)
{
	while (events)
		event_closed(events->fd);
}

static bool holds_event(const struct pollfd *fds, nfds_t count)
{
	for (nfds_t i = 0; i < count; i++)
		if (find(fds[i].fd))
			return true;
	return false;
}

void event_begin_poll(const struct pollfd *fds, nfds_t count)
{
	ledger_lock();
	sleepers += holds_event(fds, count);
	ledger_unlock();
}

void event_end_poll(struct pollfd *fds, nfds_t count, int reported)
{
	ledger_lock();
	sleepers -= holds_event(fds, count);
	for (nfds_t i = 0; reported > 0 && i < count; i++) {
		struct pollfd still = {.fd = fds[i].fd, .events = POLLIN};
		uint64_t taken;

		/* Another thread may have taken it. */
		if (!(fds[i].revents & POLLIN) || !find(fds[i].fd) ||
		    libc()->poll(&still, 1, 0) != 1)
			continue;
		if (read(fds[i].fd, &taken, sizeof(taken)) <= 0)
			continue;
		fds[i].revents |= fds[i].events & POLLPRI;
		wakes++;
	}
	ledger_unlock();
}

int event_sleepers(void)
{
	return sleepers;
}

int event_wakes(void)
{
	return wakes;
}

bool event_exists(void)
{
	return __atomic_load_n(&events, __ATOMIC_ACQUIRE);
}
