/* SPDX-License-Identifier: MIT */
/* The process that opened the node owns what is pinned through it: nobody else may use it. */
#include "rig.h"

#include <linux/sched.h>
#include <sys/socket.h>
#include <sys/uio.h>

struct rig {
	struct gpu gpu;
	int node;
	uint64_t handle;
	unsigned char *mapped;
};

static struct rig pinned_and_mapped(void)
{
	struct rig rig = {.gpu = gpu_alloc(1), .node = open_node()};

	CHECK_EQ(pin(rig.node, rig.gpu.va, rig.gpu.size, &rig.handle), 0);
	CHECK_EQ(map(rig.node, rig.handle, rig.gpu.size, &rig.mapped), 0);
	rig.mapped[0] = 1;
	return rig;
}

static void send_fd(int socket, int fd)
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec byte = {.iov_base = (char[]){0}, .iov_len = 1};
	struct msghdr message = {.msg_iov = &byte,
				 .msg_iovlen = 1,
				 .msg_control = control.room,
				 .msg_controllen = sizeof(control.room)};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	CHECK_EQ(sendmsg(socket, &message, 0), 1);
}

static int receive_fd(int socket)
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	char byte;
	struct iovec where = {.iov_base = &byte, .iov_len = 1};
	struct msghdr message = {.msg_iov = &where,
				 .msg_iovlen = 1,
				 .msg_control = control.room,
				 .msg_controllen = sizeof(control.room)};
	int fd;

	CHECK_EQ(recvmsg(socket, &message, 0), 1);
	CHECK(CMSG_FIRSTHDR(&message) != NULL);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}

/* Each command, with an argument that is right for the owner. */
static void check_nothing_allowed(int node, uint64_t va, uint64_t handle)
{
	struct abi_features features = {.size = sizeof(features)};
	struct abi_attr attr = {.attr = ABI_ATTR_PERSISTENT};
	struct abi_version version;
	struct abi_info_v2 v2;
	struct abi_info info;
	struct abi_event event;
	struct pollfd poller = {.fd = node, .events = POLLIN};
	uint64_t other;
	uint32_t flag;
	int fd;

	CHECK_EQ(pin_v1(node, va, GPU_PAGE, &other), EACCES);
	CHECK_EQ(pin(node, va, GPU_PAGE, &other), EACCES);
	CHECK_EQ(pin_v3(node, va, GPU_PAGE, 0, &other), EACCES);
	CHECK_EQ(get_info(node, handle, &info), EACCES);
	CHECK_EQ(get_info_v2(node, handle, &v2), EACCES);
	CHECK_EQ(get_cb_flag(node, handle, &flag), EACCES);
	CHECK_EQ(request_type(node, handle, ABI_TYPE_WC), EACCES);
	CHECK_EQ(share(node, handle, 0, &fd), EACCES);
	CHECK_EQ(share(node, handle, ABI_READ_ONLY, &fd), EACCES);
	CHECK_EQ(unpin(node, handle), EACCES);
	CHECK_EQ(call(node, ABI_GET_VERSION, &version), EACCES);
	CHECK_EQ(call(node, ABI_GET_ATTR, &attr), EACCES);
	CHECK_EQ(call(node, ABI_FEATURES, &features), EACCES);
	CHECK_EQ(read_events(node, &event, 1), -EACCES);
	CHECK_EQ(poll(&poller, 1, 0), 1);
	CHECK_EQ(poller.revents, POLLERR);
}

static void check_still_the_owners(const struct rig *rig)
{
	struct abi_info info;

	rig->mapped[5] = 55;
	CHECK_EQ(rig->gpu.bytes[5], 55);
	CHECK_EQ(get_info(rig->node, rig->handle, &info), 0);
	CHECK_EQ(gpu_pins(), 1);
}

static void a_forked_child_may_do_nothing(void)
{
	struct rig rig = pinned_and_mapped();

	IN_CHILD(check_nothing_allowed(rig.node, rig.gpu.va, rig.handle));
	check_still_the_owners(&rig);
}

static void a_forked_child_may_not_map(void)
{
	struct rig rig = pinned_and_mapped();
	unsigned char *mapped;

	CHECK_EQ(munmap(rig.mapped, rig.gpu.size), 0);
	IN_CHILD(CHECK_EQ(map(rig.node, rig.handle, rig.gpu.size, &mapped), EACCES));
	CHECK_EQ(map(rig.node, rig.handle, rig.gpu.size, &rig.mapped), 0);
	check_still_the_owners(&rig);
}

static void a_mapping_is_not_in_a_forked_child(void)
{
	struct rig rig = pinned_and_mapped();

	IN_CHILD(CHECK_EQ(load_signal(rig.mapped), SIGSEGV);
		 CHECK_EQ(store_signal(rig.mapped), SIGSEGV));
	check_still_the_owners(&rig);
}

static void a_mapping_of_a_share_is_not_in_a_forked_child(void)
{
	struct rig rig = pinned_and_mapped();
	unsigned char *mapped;
	int fd;

	CHECK_EQ(share(rig.node, rig.handle, 0, &fd), 0);
	CHECK_EQ(map_share(fd, 0, GPU_PAGE, &mapped), 0);
	CHECK_EQ(store_signal(mapped), 0);
	IN_CHILD(CHECK_EQ(store_signal(mapped), SIGSEGV));
}

static void send_pin(int socket, const struct rig *rig)
{
	send_fd(socket, rig->node);
	CHECK_EQ(write(socket, &rig->handle, sizeof(rig->handle)), sizeof(rig->handle));
}

static int receive_pin(int socket, uint64_t *handle)
{
	int node = receive_fd(socket);

	CHECK_EQ(read(socket, handle, sizeof(*handle)), sizeof(*handle));
	return node;
}

static void who_receives_the_descriptor_may_do_nothing(void)
{
	unsigned char *mapped;
	int ends[2], node;
	uint64_t handle;
	char byte = 0;
	pid_t owner;

	CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
	owner = fork();
	if (!owner) {
		struct rig rig = pinned_and_mapped();

		send_pin(ends[1], &rig);
		CHECK_EQ(read(ends[1], &byte, 1), 1);
		check_still_the_owners(&rig);
		_exit(0);
	}
	node = receive_pin(ends[0], &handle);
	/* Not even with memory of its own. */
	check_nothing_allowed(node, gpu_alloc(1).va, handle);
	CHECK_EQ(map(node, handle, GPU_PAGE, &mapped), EACCES);
	CHECK_EQ(write(ends[0], &byte, 1), 1);
	await_child(owner);
}

static void a_childs_close_leaves_the_owners_pins(void)
{
	struct rig rig = pinned_and_mapped();

	IN_CHILD(close(rig.node));
	check_still_the_owners(&rig);
}

static void a_pin_ends_when_another_process_closes_the_node_last(void)
{
	struct gpu gpu = gpu_alloc(1);
	int node = open_node();
	int go[2], done[2];
	uint64_t handle;
	char byte = 0;
	pid_t child;

	CHECK_EQ(pin(node, gpu.va, GPU_PAGE, &handle), 0);
	CHECK_EQ(pipe(go), 0);
	CHECK_EQ(pipe(done), 0);
	child = fork();
	if (!child) {
		CHECK_EQ(read(go[0], &byte, 1), 1);
		CHECK_EQ(gpu_pins(), 1);
		close(node);
		CHECK_EQ(write(done[1], &byte, 1), 1);
		_exit(0);
	}
	close(node);
	CHECK_EQ(write(go[1], &byte, 1), 1);
	CHECK_EQ(read(done[0], &byte, 1), 1);
	CHECK_EQ(gpu_pins(), 0);
	await_child(child);
}

static void pins_end_with_a_process_that_is_killed(void)
{
	int ready[2], status;
	char byte = 0;
	pid_t child;

	CHECK_EQ(pipe(ready), 0);
	child = fork();
	if (!child) {
		pinned_and_mapped();
		CHECK_EQ(write(ready[1], &byte, 1), 1);
		pause();
	}
	CHECK_EQ(read(ready[0], &byte, 1), 1);
	CHECK_EQ(gpu_pins(), 1);
	CHECK_EQ(kill(child, SIGKILL), 0);
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(gpu_pins(), 0);
}

static pid_t fork_as(pid_t number)
{
	struct clone_args args = {
		.exit_signal = SIGCHLD, .set_tid = (uintptr_t)&number, .set_tid_size = 1};
	pid_t child = (pid_t)syscall(SYS_clone3, &args, sizeof(args));

	CHECK(child == 0 || child == number);
	return child;
}

/* The owner is gone, its number in use again by a child that inherited the descriptor. */
static void a_process_with_the_owners_number_is_not_the_owner(void)
{
	unsigned char *mapped;
	int ends[2], node;
	uint64_t handle;
	pid_t owner, heir;

	CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
	owner = fork();
	if (!owner) {
		struct rig rig = pinned_and_mapped();

		send_pin(ends[1], &rig);
		_exit(0);
	}
	node = receive_pin(ends[0], &handle);
	await_child(owner);

	heir = fork_as(owner);
	if (!heir) {
		CHECK_EQ(getpid(), owner);
		check_nothing_allowed(node, gpu_alloc(1).va, handle);
		CHECK_EQ(map(node, handle, GPU_PAGE, &mapped), EACCES);
		_exit(0);
	}
	await_child(heir);
}

RIG_MAIN(TEST(a_forked_child_may_do_nothing), TEST(a_forked_child_may_not_map),
	 TEST(a_mapping_is_not_in_a_forked_child),
	 TEST(a_mapping_of_a_share_is_not_in_a_forked_child),
	 TEST(who_receives_the_descriptor_may_do_nothing),
	 TEST(a_childs_close_leaves_the_owners_pins),
	 TEST(a_pin_ends_when_another_process_closes_the_node_last),
	 TEST(pins_end_with_a_process_that_is_killed),
	 TEST(a_process_with_the_owners_number_is_not_the_owner))
