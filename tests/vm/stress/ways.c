/* SPDX-License-Identifier: MIT */
/* The owner's part of a round: what it leaves behind, and how it ends. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "closes.h"

#define CYCLE_MAX 3
#define THREADS_MAX 4

static int send_fds(int to, const void *bytes, size_t size, const int *fds, unsigned int count)
{
	union {
		char room[CMSG_SPACE(FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} ancillary = {};
	struct iovec data = {.iov_base = (void *)bytes, .iov_len = size};
	struct msghdr header = {
		.msg_iov = &data,
		.msg_iovlen = 1,
		.msg_control = count ? ancillary.room : NULL,
		.msg_controllen = count ? CMSG_SPACE(count * sizeof(int)) : 0,
	};
	struct cmsghdr *control = CMSG_FIRSTHDR(&header);

	if (control) {
		control->cmsg_level = SOL_SOCKET;
		control->cmsg_type = SCM_RIGHTS;
		control->cmsg_len = CMSG_LEN(count * sizeof(int));
		memcpy(CMSG_DATA(control), fds, count * sizeof(int));
	}
	return result_of(sendmsg(to, &header, MSG_NOSIGNAL));
}

/* Until the runner lets all go on at once. */
static void await_go(int stage)
{
	char byte;

	while (recv(stage, &byte, 1, 0) < 0 && errno == EINTR)
		;
}

static void __attribute__((noreturn)) end_by_exec(void)
{
	execl("/bin/true", "true", (char *)NULL);
	closes_fail("exec: %s", strerror(errno));
}

/* With all that is open, or some of it closed before. */
static void __attribute__((noreturn)) end_somehow(struct random *random)
{
	if (once_in(random, 3))
		linger(random);
	if (below(random, 2))
		world_close_nodes();
	if (once_in(random, 4))
		world_close_views();
	if (once_in(random, 4))
		world_close_shares();
	if (once_in(random, 16)) {
		record_event(EXEC, 0);
		end_by_exec();
	}
	_exit(0);
}

static void __attribute__((noreturn)) child_main(int stage, unsigned int number)
{
	struct random random = {world.random.state + number};

	world_fill_holes();
	world_as_stranger(&random);
	await_go(stage);
	linger(&random);
	world_as_stranger(&random);
	end_somehow(&random);
}

static int prepare_fork(struct random *random, int stage)
{
	for (unsigned int i = 0, count = 1 + below(random, CHILDREN); i < count; i++) {
		pid_t child = fork_or_fail();

		if (!child)
			child_main(stage, i + 1);
		round_now->children[i] = child;
	}
	return -1;
}

static unsigned int add_fds(int *fds, unsigned int count, int first, unsigned int more)
{
	for (unsigned int i = 0; i < more; i++)
		fds[count++] = first + i;
	return count;
}

/* Each socket's queue holds the next socket, the last one's the first. */
static void __attribute__((noreturn)) finish_rights(struct random *random)
{
	static const int types[] = {SOCK_DGRAM, SOCK_STREAM, SOCK_SEQPACKET};
	int pairs[CYCLE_MAX][2], fds[FDS_MAX];
	unsigned int length = 1 + below(random, CYCLE_MAX), count;

	for (unsigned int i = 0; i < length; i++) {
		if (socketpair(AF_UNIX, types[below(random, 3)] | SOCK_CLOEXEC, 0, pairs[i]))
			closes_fail("a socket: %s", strerror(errno));
	}
	for (unsigned int i = 0; i < length; i++) {
		fds[0] = pairs[(i + 1) % length][0];
		count = 1;
		if (!i || below(random, 2))
			count = add_fds(fds, count, world.node_fd, world.nodes);
		if (below(random, 2))
			count = add_fds(fds, count, world.share_fd, SHARES);
		if (below(random, 2))
			count = add_fds(fds, count, world.view_fd, world.blocks);
		record(SEND, send_fds(pairs[i][1], "", 1, fds, count));
	}
	for (unsigned int i = 0; i < length; i++)
		close(pairs[i][1]);
	/* The runner's socket too: the cycle is to be closed by another process, as a rule. */
	if (below(random, 2))
		end_somehow(random);
	world_close_nodes();
	world_close_shares();
	world_close_views();
	for (unsigned int i = 0; i < length; i++)
		close(pairs[i][0]);
	_exit(0);
}

/* A child holds the ring longer than its parent, or the runner does, or neither. */
static int prepare_uring(struct random *random, int stage)
{
	int ring = uring_with_files(random);
	pid_t child;

	switch (below(random, 3)) {
	case 0:
		return ring;
	case 1:
		child = fork_or_fail();
		if (!child) {
			world_close_nodes();
			world_close_shares();
			world_close_views();
			await_go(stage);
			linger(&world.random);
			_exit(0);
		}
		round_now->children[0] = child;
	}
	return -1;
}

static void __attribute__((noreturn)) finish_uring(struct random *random)
{
	world_close_nodes();
	end_somehow(random);
}

static void *step_forever(void *argument)
{
	struct random random = {(uintptr_t)argument};

	for (;;) {
		world_step(&random);
		round_now->calls++;
	}
	return NULL;
}

static void __attribute__((noreturn)) finish_kill(struct random *random)
{
	for (unsigned int i = below(random, THREADS_MAX); i--;) {
		pthread_t id;

		if (pthread_create(&id, NULL, step_forever, (void *)random_next(random)))
			closes_fail("no thread");
	}
	step_forever((void *)random_next(random));
	_exit(1);
}

/* One of the shares outlives all else. */
static int prepare_unload(struct random *random, int stage)
{
	(void)stage;
	return below(random, 2) ? world.share_fd + (int)below(random, SHARES) : -1;
}

static const struct {
	/* A descriptor for the runner, or -1. */
	int (*prepare)(struct random *random, int stage);
	void (*finish)(struct random *random) __attribute__((noreturn));
} ways[TARGETS] = {
	[TARGET_FORK] = {prepare_fork, end_somehow},
	[TARGET_RIGHTS] = {NULL, finish_rights},
	[TARGET_URING] = {prepare_uring, finish_uring},
	[TARGET_PROC] = {NULL, end_somehow},
	[TARGET_KILL] = {NULL, finish_kill},
	[TARGET_UNLOAD] = {prepare_unload, end_somehow},
};

static void tell(struct random *random, int stage, int last)
{
	struct news news = {.has_last = last >= 0};
	int fds[FDS_MAX], witness = below(random, 4) ? world_witness() : -1, result;
	unsigned int count = 0;

	if (below(random, 2)) {
		news.views = world.blocks;
		count = add_fds(fds, count, world.view_fd, world.blocks);
		for (unsigned int i = 0; i < world.blocks; i++)
			news.addresses[i] = (uintptr_t)world.addresses[i];
	}
	if (witness >= 0) {
		news.has_witness = true;
		fds[count++] = witness;
	}
	fds[count] = last;
	result = send_fds(stage, &news, sizeof(news), fds, count + news.has_last);
	/* Newer kernels send no rings. */
	if (result == EINVAL && news.has_last) {
		news.has_last = false;
		result = send_fds(stage, &news, sizeof(news), fds, count);
	}
	if (result)
		closes_fail("the news cannot be told: %s", strerror(result));
	if (witness >= 0)
		close(witness);
}

void owner_main(int stage)
{
	struct random *random = &world.random;
	int last = -1;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!world_make(round_now->seed))
		_exit(0);
	for (unsigned int i = 10 + below(random, 120); i--;)
		world_step(random);
	if (ways[closes->target].prepare)
		last = ways[closes->target].prepare(random, stage);
	tell(random, stage, last);
	await_go(stage);
	if (once_in(random, 4))
		world_free_some(random);
	close(stage);
	ways[closes->target].finish(random);
}
