/* SPDX-License-Identifier: MIT */
#include "forks.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Held for a moment, and across a fork: of all below. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned int holding, forking; /* threads that hold forks, and that wait to fork */
static bool *is_private;	      /* of each descriptor below `room` */
static int room;
static struct gdr_arrival *arrivals;

/* A waiting fork goes first; busy threads could otherwise hold it off for ever. */
void gdr_forks_hold(void)
{
	pthread_mutex_lock(&lock);
	while (forking)
		pthread_cond_wait(&changed, &lock);
	holding++;
	pthread_mutex_unlock(&lock);
}

void gdr_forks_let_go(void)
{
	pthread_mutex_lock(&lock);
	if (!--holding && forking)
		pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
	forking++;
	while (holding)
		pthread_cond_wait(&changed, &lock);
}

static void go_on(void)
{
	forking--;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

static void begin_child(void)
{
	for (int fd = 0; fd < room; fd++) {
		if (is_private[fd])
			close(fd);
		is_private[fd] = false;
	}
	for (; arrivals; arrivals = arrivals->next)
		for (int i = 0; i < arrivals->count && arrivals->fds[i] >= 0; i++)
			close(arrivals->fds[i]);
	pthread_cond_init(&changed, NULL); /* whoever waited is not here */
	forking = 0;
	pthread_mutex_unlock(&lock);
}

/* Ahead of the others: who opens something may hold a lock that another handler waits for. */
static void __attribute__((constructor(101))) watch_forks(void)
{
	pthread_atfork(before_fork, go_on, begin_child);
}

/* The next three are called with the lock held. */
static bool have_room(int fd)
{
	int wanted = fd + 64;
	bool *larger;

	if (fd < room)
		return true;
	larger = realloc(is_private, (size_t)wanted * sizeof(*larger));
	if (!larger)
		return false;
	memset(larger + room, 0, (size_t)(wanted - room) * sizeof(*larger));
	is_private = larger;
	room = wanted;
	return true;
}

static bool note(int fd)
{
	if (!have_room(fd))
		return false;
	is_private[fd] = true;
	return true;
}

static bool forget(int fd)
{
	bool known = fd >= 0 && fd < room && is_private[fd];

	if (known)
		is_private[fd] = false;
	return known;
}

int gdr_private_note(int fd)
{
	bool noted;

	if (fd < 0)
		return -1;
	pthread_mutex_lock(&lock);
	noted = note(fd);
	pthread_mutex_unlock(&lock);
	if (noted)
		return fd;
	close(fd);
	errno = ENOMEM;
	return -1;
}

void gdr_arrival_begin(struct gdr_arrival *arrival)
{
	pthread_mutex_lock(&lock);
	arrival->next = arrivals;
	arrivals = arrival;
	pthread_mutex_unlock(&lock);
}

void gdr_arrival_end(struct gdr_arrival *arrival, int *came, int count)
{
	struct gdr_arrival **link = &arrivals;

	pthread_mutex_lock(&lock);
	while (*link != arrival)
		link = &(*link)->next;
	*link = arrival->next;
	for (int i = 0; i < count; i++) {
		if (note(came[i]))
			continue;
		close(came[i]);
		came[i] = -1;
	}
	pthread_mutex_unlock(&lock);
}

int gdr_private_adopt(int fd)
{
	if (fd >= 0)
		fcntl(fd, F_SETFD, FD_CLOEXEC);
	return gdr_private_note(fd);
}

int gdr_private_open(const char *path, int flags)
{
	int fd;

	gdr_forks_hold();
	do {
		fd = open(path, flags | O_CLOEXEC);
	} while (fd < 0 && errno == EINTR);
	fd = gdr_private_note(fd);
	gdr_forks_let_go();
	return fd;
}

int gdr_private_duplicate(int fd)
{
	gdr_forks_hold();
	fd = gdr_private_note(fcntl(fd, F_DUPFD_CLOEXEC, 3));
	gdr_forks_let_go();
	return fd;
}

int gdr_private_close(int fd)
{
	bool known;
	int ret;

	gdr_forks_hold();
	pthread_mutex_lock(&lock);
	known = forget(fd);
	pthread_mutex_unlock(&lock);
	errno = EBADF;
	ret = known ? close(fd) : -1;
	gdr_forks_let_go();
	return ret;
}
