/* SPDX-License-Identifier: MIT */
/* What the storm asks of the module, whose answers must make sense at any time. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "storm.h"

int op_read_events(struct thread *thread)
{
	struct gdrdrv_event events[8];
	ssize_t got = read(NODE_FD + below(&thread->random, NODES), events, sizeof(events));

	if (got < 0)
		return result_of(-1);
	if (!got || got % sizeof(events[0]))
		storm_fail(thread, "%zd bytes of events", got);
	for (size_t i = 0; i < got / sizeof(events[0]); i++) {
		const struct gdrdrv_event *event = &events[i];
		bool lost = event->kind == GDRDRV_EVENT_OVERFLOW && event->lost;
		bool revoked = event->kind == GDRDRV_EVENT_REVOKED && event->handle && !event->lost;

		if (!event->sequence || (!lost && !revoked))
			storm_fail(thread, "an event of kind %u, handle %llu, %u lost", event->kind,
				   (unsigned long long)event->handle, event->lost);
	}
	return 0;
}

/* EIO: it reports what it must not. */
static int poll_fd(int fd, short events, bool (*fine)(short events))
{
	struct pollfd wanted = {.fd = fd, .events = events};

	if (poll(&wanted, 1, 0) < 0)
		return result_of(-1);
	return fine(wanted.revents) ? 0 : EIO;
}

static bool is_node_event(short events)
{
	return !(events & ~POLLIN);
}

static bool is_share_event(short events)
{
	return !events || events == (POLLHUP | POLLERR);
}

int op_poll_node(struct thread *thread)
{
	return poll_fd(NODE_FD + below(&thread->random, NODES), POLLIN, is_node_event);
}

int op_poll_share(struct thread *thread)
{
	return poll_fd(SHARE_FD + below(&thread->random, SHARES), 0, is_share_event);
}

int op_set_type(struct thread *thread)
{
	struct pin_name name = some_pin(thread);
	struct gdrdrv_req_mapping_type args = {
		.handle = name.handle,
		.mapping_type = below(&thread->random, 5),
	};

	return result_of(ioctl(NODE_FD + name.node, GDRDRV_IOC_REQ_MAPPING_TYPE, &args));
}

int op_get_info(struct thread *thread)
{
	struct pin_name name = some_pin(thread);
	struct gdrdrv_get_info_v2 info = {.handle = name.handle};

	if (ioctl(NODE_FD + name.node, GDRDRV_IOC_GET_INFO_V2, &info))
		return result_of(-1);
	/* A pin is mapped uncached if an allocation failed that would have recorded its memory. */
	if (info.mapping_type == GDRDRV_MAPPING_DEVICE && storm->options.faults)
		info.mapping_type = GDRDRV_MAPPING_WC;
	if (info.handle != name.handle || info.va % GDRDRV_GPU_PAGE_SIZE || !info.mapped_size ||
	    info.mapped_size % GDRDRV_GPU_PAGE_SIZE || info.page_size != GDRDRV_GPU_PAGE_SIZE ||
	    info.mapping_type > GDRDRV_MAPPING_WC)
		storm_fail(thread, "handle %llu is said to be at %#llx + %#llx, type %u",
			   (unsigned long long)info.handle, (unsigned long long)info.va,
			   (unsigned long long)info.mapped_size, info.mapping_type);
	return 0;
}

int op_get_cb_flag(struct thread *thread)
{
	struct pin_name name = some_pin(thread);
	struct gdrdrv_get_cb_flag args = {.handle = name.handle, .flag = 7};

	if (ioctl(NODE_FD + name.node, GDRDRV_IOC_GET_CB_FLAG, &args))
		return result_of(-1);
	return args.flag > 1 ? EIO : 0;
}

int op_read_proc(struct thread *thread)
{
	const char *path = below(&thread->random, 2) ? "/proc/driver/gdrdrv/stats"
						     : "/proc/driver/gdrdrv/pins";
	char text[4096];
	int fd = open(path, O_RDONLY | O_CLOEXEC), result;
	ssize_t got;

	if (fd < 0)
		return result_of(-1);
	do {
		got = read(fd, text, sizeof(text));
	} while (got > 0);
	result = result_of(got);
	close(fd);
	return result;
}

/* In vain: the supervisor has the node open. */
int op_unload(struct thread *thread)
{
	(void)thread;
	return result_of(syscall(SYS_delete_module, "gdrdrv", O_NONBLOCK));
}
