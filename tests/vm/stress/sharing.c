/* SPDX-License-Identifier: MIT */
/* The storm's descriptors on their way: opened, shared, sent, inherited. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guard.h"
#include "storm.h"

struct message {
	uint8_t sender;
	bool is_node;
};

/* What carries one descriptor. */
union ancillary {
	char room[CMSG_SPACE(sizeof(int))];
	struct cmsghdr align;
};

/* Seldom, since it ends all pins that the node had. */
int op_open_node(struct thread *thread)
{
	int fd;

	if (below(&thread->random, 8))
		return SKIPPED;
	fd = open(GDRDRV_NODE, O_RDWR | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0)
		return result_of(-1);
	install_fd(fd, NODE_FD + below(&thread->random, NODES));
	return 0;
}

int op_share(struct thread *thread)
{
	struct pin_name name = some_pin(thread);
	struct gdrdrv_share args = {
		.size = sizeof(args),
		.flags = below(&thread->random, 3) ? 0 : GDRDRV_SHARE_RDONLY,
		.handle = name.handle,
	};

	if (ioctl(NODE_FD + name.node, GDRDRV_IOC_SHARE, &args))
		return result_of(-1);
	install_fd(args.fd, SHARE_FD + below(&thread->random, SHARES));
	return 0;
}

static int send_fd(unsigned int to, int fd, bool is_node)
{
	struct message message = {.sender = worker.index, .is_node = is_node};
	struct iovec data = {.iov_base = &message, .iov_len = sizeof(message)};
	union ancillary ancillary = {};
	struct msghdr header = {
		.msg_iov = &data,
		.msg_iovlen = 1,
		.msg_control = ancillary.room,
		.msg_controllen = sizeof(ancillary.room),
	};
	struct cmsghdr *control = CMSG_FIRSTHDR(&header);

	control->cmsg_level = SOL_SOCKET;
	control->cmsg_type = SCM_RIGHTS;
	control->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(control), &fd, sizeof(fd));
	return result_of(sendmsg(MAILBOX_FD + 2 * to, &header, MSG_DONTWAIT));
}

int op_send_share(struct thread *thread)
{
	return send_fd(below(&thread->random, storm->options.workers),
		       SHARE_FD + below(&thread->random, SHARES), false);
}

/* To another worker, who can do nothing with it; but it keeps the node open. */
int op_send_node(struct thread *thread)
{
	unsigned int to = below(&thread->random, storm->options.workers);

	if (to == worker.index)
		return SKIPPED;
	return send_fd(to, NODE_FD + below(&thread->random, NODES), true);
}

static void try_strange_node(struct thread *thread, int node)
{
	struct gdrdrv_get_info_v2 args = {.handle = 1 + below(&thread->random, 32)};
	struct gdrdrv_event event;

	record(thread, STRANGER_IOCTL, result_of(ioctl(node, GDRDRV_IOC_GET_INFO_V2, &args)));
	record(thread, STRANGER_MAP,
	       result_of((long)mmap(NULL, GDRDRV_GPU_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED,
				    node, (off_t)args.handle * CPU_PAGE)));
	record(thread, STRANGER_READ, result_of(read(node, &event, sizeof(event))));
}

int op_receive(struct thread *thread)
{
	struct message message;
	struct iovec data = {.iov_base = &message, .iov_len = sizeof(message)};
	union ancillary ancillary;
	struct msghdr header = {
		.msg_iov = &data,
		.msg_iovlen = 1,
		.msg_control = ancillary.room,
		.msg_controllen = sizeof(ancillary.room),
	};
	struct cmsghdr *control;
	int fd;

	if (recvmsg(MAILBOX_FD + 2 * worker.index + 1, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) <
	    0)
		return result_of(-1);
	control = CMSG_FIRSTHDR(&header);
	/* An injected failure may have cost the descriptor. */
	if (!control)
		return storm->options.faults ? ENOMEM : EPROTO;

	memcpy(&fd, CMSG_DATA(control), sizeof(fd));
	if (message.is_node) {
		try_strange_node(thread, fd);
		close(fd);
	} else {
		install_fd(fd, PEER_FD + message.sender * PEER_SHARES +
				       below(&thread->random, PEER_SHARES));
	}
	return 0;
}

/* In a forked child: nothing but its descriptors is the parent's, and of these only shares work. */
static void __attribute__((noreturn)) child_main(struct thread *thread, pid_t parent, bool wait)
{
	struct slot *slot = &worker.slots[below(&thread->random, SLOTS)];
	uint32_t value;
	int result;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(0);

	for (int i = 0; i < SLOTS; i += 3)
		record(thread, CHILD_TOUCH,
		       guarded_read((uint32_t *)worker.slots[i].address, &value));
	try_strange_node(thread, NODE_FD + below(&thread->random, NODES));

	for (int i = 0; i < SHARES; i++) {
		result = map_share(thread, slot, SHARE_FD + i);
		record(thread, CHILD_MAP_SHARE, result);
		if (!result)
			record(thread, CHILD_TOUCH_SHARE, touch(thread, slot));
	}
	while (wait)
		pause();
	_exit(0);
}

int op_fork(struct thread *thread)
{
	bool kill_it = below(&thread->random, 2);
	pid_t parent = getpid(), child;
	int status;

	child = fork();
	if (child < 0)
		return result_of(-1);
	if (!child)
		child_main(thread, parent, kill_it);

	if (kill_it)
		record(thread, KILL_CHILD, result_of(kill(child, SIGKILL)));
	if (waitpid(child, &status, 0) < 0)
		return result_of(-1);
	if (WIFEXITED(status) && WEXITSTATUS(status))
		_exit(1); /* It has said why. */
	record_death(thread, status);
	return 0;
}
