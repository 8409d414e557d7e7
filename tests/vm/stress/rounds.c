/* SPDX-License-Identifier: MIT */
/* One round, as its runner sees it: an owner from its birth until nothing of it is left. */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "closes.h"
#include "guard.h"
#include "standin.h"

#define LAST_CLOSE_MS 20000
#define COLLECT_MS 10

/* What the runner got of the owner. */
struct legacy {
	struct news news;
	int witness, last;
	int views[BLOCKS];
	uint32_t *mapped; /* the witness's memory, or NULL */
};

/* When the runner takes the owner's memory away, if it has a view. */
enum freeing {
	FREE_DURING,
	FREE_AFTER,
	CLOSE_DURING,
	CLOSE_AFTER,
};

static bool receive(int stage, struct legacy *legacy)
{
	union {
		char room[CMSG_SPACE(FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} ancillary;
	struct iovec data = {.iov_base = &legacy->news, .iov_len = sizeof(legacy->news)};
	struct msghdr header = {
		.msg_iov = &data,
		.msg_iovlen = 1,
		.msg_control = ancillary.room,
		.msg_controllen = sizeof(ancillary.room),
	};
	int fds[FDS_MAX], next = 0;
	ssize_t got = recvmsg(stage, &header, MSG_CMSG_CLOEXEC);

	*legacy = (struct legacy){.news = legacy->news, .witness = -1, .last = -1};
	if (got < 0)
		closes_fail("the owner's news: %s", strerror(errno));
	if (!got)
		return false;
	if (CMSG_FIRSTHDR(&header))
		memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&header)),
		       CMSG_FIRSTHDR(&header)->cmsg_len - CMSG_LEN(0));
	for (uint32_t i = 0; i < legacy->news.views; i++)
		legacy->views[i] = fds[next++];
	if (legacy->news.has_witness)
		legacy->witness = fds[next++];
	if (legacy->news.has_last)
		legacy->last = fds[next++];
	return true;
}

static bool has_ended(int witness, int timeout)
{
	struct pollfd share = {.fd = witness};

	record(POLL_SHARE, result_of(poll(&share, 1, timeout)));
	return share.revents & POLLHUP;
}

/* The owner waits with everything open. */
static void look_before(struct random *random, struct legacy *legacy)
{
	if (legacy->witness < 0)
		return;
	if (has_ended(legacy->witness, 0))
		closes_fail("a pin has ended before its node was closed");
	if (below(random, 2))
		return;
	legacy->mapped = mmap(NULL, GDRDRV_GPU_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED,
			      legacy->witness, 0);
	if (legacy->mapped == MAP_FAILED)
		closes_fail("a witness cannot be mapped: %s", strerror(errno));
	record(TOUCH_WITNESS, guarded_store(legacy->mapped, 1));
}

static void look_after(struct legacy *legacy)
{
	uint32_t value;

	if (legacy->witness < 0)
		return;
	record_event(LAST_CLOSE, has_ended(legacy->witness, LAST_CLOSE_MS) ? 0 : ETIMEDOUT);
	if (legacy->mapped)
		record(TOUCH_AFTER, guarded_read(legacy->mapped, &value));
	record(MAP_AFTER, result_of((long)mmap(NULL, GDRDRV_GPU_PAGE_SIZE, PROT_READ, MAP_SHARED,
					       legacy->witness, 0)));
}

static void take_memory(const struct legacy *legacy, bool close_it)
{
	for (uint32_t i = 0; i < legacy->news.views; i++) {
		if (close_it)
			world_close(legacy->views[i], CLOSE_MEMORY);
		else
			record(FREE_MEMORY, result_of(gpu_memory_free(legacy->views[i],
								      legacy->news.addresses[i])));
	}
}

static void await_calls(uint64_t calls)
{
	while (round_now->calls < calls && !closes->stop)
		sched_yield();
}

/* Sockets that nothing holds but messages in one another end when any socket is closed. */
static void collect(int witness)
{
	for (int attempt = 0; attempt < LAST_CLOSE_MS / COLLECT_MS; attempt++) {
		int any = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

		record_event(COLLECT, result_of(any));
		close(any);
		if (witness < 0 || has_ended(witness, COLLECT_MS))
			return;
	}
}

static void check_death(int status)
{
	if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
		closes_fail("a process ended by signal %d", WTERMSIG(status));
	if (WIFEXITED(status) && WEXITSTATUS(status))
		closes_fail("a process ended with status %d", WEXITSTATUS(status));
}

static void end_owner(struct random *random, pid_t owner)
{
	int status;

	if (closes->target == TARGET_KILL)
		await_calls(below(random, 300));
	if (closes->target == TARGET_KILL || once_in(random, 3)) {
		linger(random);
		record_event(KILL, result_of(kill(owner, SIGKILL)));
	}
	if (waitpid(owner, &status, 0) != owner)
		closes_fail("no owner: %s", strerror(errno));
	check_death(status);
}

/* The runner is who inherits them, and has not waited for them yet. */
static void end_children(struct random *random)
{
	for (int i = 0; i < CHILDREN; i++) {
		if (!round_now->children[i] || below(random, 2))
			continue;
		linger(random);
		record_event(KILL, result_of(kill(round_now->children[i], SIGKILL)));
	}
}

static void reap_all(void)
{
	int status;

	while (waitpid(-1, &status, 0) > 0)
		check_death(status);
	for (int i = 0; i < CHILDREN; i++)
		round_now->children[i] = 0;
}

static void let_go(struct random *random, int stage, pid_t owner, struct legacy *legacy)
{
	enum freeing freeing = below(random, 4);

	look_before(random, legacy);
	round_now->owner = owner;
	shutdown(stage, SHUT_RDWR);
	if (freeing == FREE_DURING || freeing == CLOSE_DURING) {
		linger(random);
		take_memory(legacy, freeing == CLOSE_DURING);
	}
	end_owner(random, owner);
	if (legacy->witness >= 0 && !has_ended(legacy->witness, 0))
		record_event(OUTLIVED_OWNER, 0);
	end_children(random);
	linger(random);
	if (legacy->last >= 0)
		record_event(CLOSE_HANDED_ON, result_of(close(legacy->last)));
	if (closes->target == TARGET_RIGHTS)
		collect(legacy->witness);
	look_after(legacy);
	if (freeing == FREE_AFTER || freeing == CLOSE_AFTER)
		take_memory(legacy, freeing == CLOSE_AFTER);
}

static void close_all(const struct legacy *legacy)
{
	for (uint32_t i = 0; i < legacy->news.views; i++)
		close(legacy->views[i]);
	if (legacy->mapped)
		munmap(legacy->mapped, GDRDRV_GPU_PAGE_SIZE);
	if (legacy->witness >= 0)
		record(CLOSE_SHARE, result_of(close(legacy->witness)));
}

void run_round(struct random *random)
{
	struct legacy legacy;
	int stage[2];
	pid_t owner;

	round_now->seed = random_next(random);
	round_now->calls = 0;
	record_event(ROUND, 0);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, stage))
		closes_fail("a socket: %s", strerror(errno));
	owner = fork_or_fail();
	if (!owner) {
		close(stage[0]);
		owner_main(stage[1]);
	}
	close(stage[1]);
	if (receive(stage[0], &legacy)) {
		let_go(random, stage[0], owner, &legacy);
		close_all(&legacy);
	}
	close(stage[0]);
	reap_all();
	round_now->owner = 0;
}
