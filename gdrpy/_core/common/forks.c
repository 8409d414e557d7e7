/* SPDX-License-Identifier: MIT */
#include "common/forks.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Threads in a gate delay forks. Its lock is held briefly, and across a fork. */
struct gate {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	unsigned int inside, forking;
};

#define GATE {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0}

static struct gate calls = GATE, exports = GATE;

/* The lock of `calls` guards what follows. */
static int room;
static struct core_arrival *arrivals;

/* One entry for each descriptor below `room`. */
static struct {
	bool is_private;
	bool is_lent; /* by one thread, to the program that it starts */
	pthread_t lender;
} *known;

/* A waiting fork goes first. Otherwise busy threads could delay it forever. */
static void enter(struct gate *gate)
{
	pthread_mutex_lock(&gate->lock);
	while (gate->forking)
		pthread_cond_wait(&gate->changed, &gate->lock);
	gate->inside++;
	pthread_mutex_unlock(&gate->lock);
}

static void leave(struct gate *gate)
{
	pthread_mutex_lock(&gate->lock);
	if (!--gate->inside && gate->forking)
		pthread_cond_broadcast(&gate->changed);
	pthread_mutex_unlock(&gate->lock);
}

static void shut(struct gate *gate)
{
	pthread_mutex_lock(&gate->lock);
	gate->forking++;
	while (gate->inside)
		pthread_cond_wait(&gate->changed, &gate->lock);
}

static void open_again(struct gate *gate)
{
	gate->forking--;
	pthread_cond_broadcast(&gate->changed);
	pthread_mutex_unlock(&gate->lock);
}

/* The child has no waiting threads. */
static void open_in_child(struct gate *gate)
{
	pthread_cond_init(&gate->changed, NULL);
	gate->forking = 0;
	pthread_mutex_unlock(&gate->lock);
}

void core_forks_hold(void)
{
	enter(&calls);
}

void core_forks_let_go(void)
{
	leave(&calls);
}

static void before_fork(void)
{
	shut(&calls);
}

static void go_on(void)
{
	open_again(&calls);
}

static bool is_lent_here(int fd)
{
	return known[fd].is_lent && pthread_equal(known[fd].lender, pthread_self());
}

static void begin_child(void)
{
	for (int fd = 0; fd < room; fd++) {
		if (known[fd].is_private && !is_lent_here(fd))
			close(fd);
		known[fd].is_private = false;
	}
	for (; arrivals; arrivals = arrivals->next)
		for (int i = 0; i < arrivals->count && arrivals->fds[i] >= 0; i++)
			close(arrivals->fds[i]);
	open_in_child(&calls);
}

/*
 * Registered first, so that before_fork() runs last: a thread that waits for a fork may hold a lock
 * that another handler needs.
 */
static void __attribute__((constructor(101))) watch_forks(void)
{
	pthread_atfork(before_fork, go_on, begin_child);
}

static void shut_exports(void)
{
	shut(&exports);
}

static void open_exports(void)
{
	open_again(&exports);
}

static void open_exports_in_child(void)
{
	open_in_child(&exports);
}

/*
 * Registered after CUDA's own handlers, so that it runs before them: an export under way needs the
 * locks that they take.
 */
static void watch_exports(void)
{
	pthread_atfork(shut_exports, open_exports, open_exports_in_child);
}

void core_export_begin(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, watch_exports);
	enter(&exports);
}

void core_export_end(void)
{
	leave(&exports);
}

/* The next four are called with the lock held. */
static bool have_room(int fd)
{
	int wanted = fd + 64;
	void *larger;

	if (fd < room)
		return true;
	larger = realloc(known, (size_t)wanted * sizeof(*known));
	if (!larger)
		return false;
	known = larger;
	memset(known + room, 0, (size_t)(wanted - room) * sizeof(*known));
	room = wanted;
	return true;
}

static bool note(int fd)
{
	if (!have_room(fd))
		return false;
	known[fd].is_private = true;
	known[fd].is_lent = false;
	return true;
}

static bool forget(int fd)
{
	bool found = fd >= 0 && fd < room && known[fd].is_private;

	if (found)
		known[fd].is_private = false;
	return found;
}

static int note_or_close(int fd)
{
	if (fd < 0 || note(fd))
		return fd;
	close(fd);
	errno = ENOMEM;
	return -1;
}

int core_private_note(int fd)
{
	pthread_mutex_lock(&calls.lock);
	fd = note_or_close(fd);
	pthread_mutex_unlock(&calls.lock);
	return fd;
}

void core_arrival_begin(struct core_arrival *arrival)
{
	pthread_mutex_lock(&calls.lock);
	arrival->next = arrivals;
	arrivals = arrival;
	pthread_mutex_unlock(&calls.lock);
}

void core_arrival_end(struct core_arrival *arrival, int *came, int count)
{
	struct core_arrival **link = &arrivals;

	pthread_mutex_lock(&calls.lock);
	while (*link != arrival)
		link = &(*link)->next;
	*link = arrival->next;
	for (int i = 0; i < count; i++) {
		if (note(came[i]))
			continue;
		close(came[i]);
		came[i] = -1;
	}
	pthread_mutex_unlock(&calls.lock);
}

void core_private_hand_over(int fd)
{
	pthread_mutex_lock(&calls.lock);
	forget(fd);
	pthread_mutex_unlock(&calls.lock);
}

int core_private_adopt(int fd)
{
	if (fd >= 0)
		fcntl(fd, F_SETFD, FD_CLOEXEC);
	return core_private_note(fd);
}

int core_private_open(const char *path, int flags)
{
	int fd;

	core_forks_hold();
	do {
		fd = open(path, flags | O_CLOEXEC);
	} while (fd < 0 && errno == EINTR);
	fd = core_private_note(fd);
	core_forks_let_go();
	return fd;
}

int core_private_duplicate(int fd)
{
	pthread_mutex_lock(&calls.lock);
	fd = note_or_close(fcntl(fd, F_DUPFD_CLOEXEC, 3));
	pthread_mutex_unlock(&calls.lock);
	return fd;
}

void core_private_lend(int fd)
{
	pthread_mutex_lock(&calls.lock);
	if (fd >= 0 && fd < room) {
		known[fd].is_lent = true;
		known[fd].lender = pthread_self();
	}
	pthread_mutex_unlock(&calls.lock);
}

void core_private_take_back(void)
{
	pthread_mutex_lock(&calls.lock);
	for (int fd = 0; fd < room; fd++)
		if (is_lent_here(fd))
			known[fd].is_lent = false;
	pthread_mutex_unlock(&calls.lock);
}

int core_private_close(int fd)
{
	bool found;
	int ret;

	core_forks_hold();
	pthread_mutex_lock(&calls.lock);
	found = forget(fd);
	pthread_mutex_unlock(&calls.lock);
	errno = EBADF;
	ret = found ? close(fd) : -1;
	core_forks_let_go();
	return ret;
}
