/* SPDX-License-Identifier: MIT */
/*
 * The library's outside: the C library's functions through which a program reaches the driver's
 * nodes, for LD_PRELOAD. Whatever is not about a node goes on to the C library.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "abi.h"
#include "clock.h"
#include "event.h"
#include "fault.h"
#include "ledger.h"
#include "libc.h"
#include "nodes.h"
#include "rm.h"

#define EXPORT __attribute__((visibility("default")))

__attribute__((constructor)) static void start(void)
{
	ledger_init();
}

static int fail(int error)
{
	errno = error;
	return -1;
}

/* 0, or -1 with errno set, for a path that the driver owns. */
static int open_node(const struct node *node, const char *path, int flags)
{
	int fd, fault;

	ledger_lock();
	fault = fault_of_open(path);
	ledger_unlock();
	if (fault)
		return fail(fault);
	fd = node_open(node, flags);
	return fd < 0 ? fail(-fd) : fd;
}

static int open_path(int dirfd, const char *path, int flags, mode_t mode)
{
	struct node node;

	if (!node_of_path(path, &node))
		return libc()->openat(dirfd, path, flags, mode);
	return open_node(&node, path, flags);
}

/* The mode argument is there only when a file may be created. */
#define MODE_ARGUMENT(flags, mode)                                                                 \
	do {                                                                                       \
		va_list arguments;                                                                 \
		va_start(arguments, flags);                                                        \
		if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE)                       \
			(mode) = va_arg(arguments, mode_t);                                        \
		va_end(arguments);                                                                 \
	} while (0)

EXPORT int open(const char *path, int flags, ...)
{
	mode_t mode = 0;

	MODE_ARGUMENT(flags, mode);
	return open_path(AT_FDCWD, path, flags, mode);
}

EXPORT int openat(int dirfd, const char *path, int flags, ...)
{
	mode_t mode = 0;

	MODE_ARGUMENT(flags, mode);
	return open_path(dirfd, path, flags, mode);
}

static int flags_of_mode(const char *mode)
{
	int flags = strchr(mode, 'e') ? O_CLOEXEC : 0;

	if (strchr(mode, '+'))
		return flags | O_RDWR;
	return flags | (mode[0] == 'r' ? O_RDONLY : O_WRONLY);
}

EXPORT FILE *fopen(const char *path, const char *mode)
{
	struct node node;
	FILE *file;
	int fd;

	if (!node_of_path(path, &node))
		return libc()->fopen(path, mode);
	fd = open_node(&node, path, flags_of_mode(mode));
	if (fd < 0)
		return NULL;
	file = fdopen(fd, mode);
	if (!file)
		close(fd);
	return file;
}

static int stat_path(int dirfd, const char *path, struct stat *st, int flags)
{
	struct node node;

	if (!node_of_path(path, &node))
		return libc()->fstatat(dirfd, path, st, flags);
	if (node.kind == NODE_ABSENT)
		return fail(ENOENT);
	node_stat(&node, st);
	return 0;
}

EXPORT int stat(const char *path, struct stat *st)
{
	return stat_path(AT_FDCWD, path, st, 0);
}

EXPORT int lstat(const char *path, struct stat *st)
{
	return stat_path(AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW);
}

EXPORT int fstatat(int dirfd, const char *path, struct stat *st, int flags)
{
	return stat_path(dirfd, path, st, flags);
}

EXPORT int fstat(int fd, struct stat *st)
{
	struct open_node node;

	if (!rm_node_of_fd(fd, &node))
		return libc()->fstat(fd, st);
	node_stat(&node.node, st);
	return 0;
}

EXPORT int faccessat(int dirfd, const char *path, int mode, int flags)
{
	struct node node;

	if (!node_of_path(path, &node))
		return libc()->faccessat(dirfd, path, mode, flags);
	if (node.kind == NODE_ABSENT)
		return fail(ENOENT);
	return mode & X_OK || (mode & W_OK && node.kind == NODE_TEXT) ? fail(EACCES) : 0;
}

EXPORT int access(const char *path, int mode)
{
	return faccessat(AT_FDCWD, path, mode, 0);
}

EXPORT int ioctl(int fd, unsigned long request, ...)
{
	struct open_node node;
	va_list arguments;
	void *argument;
	int ret;

	va_start(arguments, request);
	argument = va_arg(arguments, void *);
	va_end(arguments);
	if (_IOC_TYPE(request) != RM_IOCTL_TYPE || !rm_node_of_fd(fd, &node))
		return libc()->ioctl(fd, request, argument);
	ret = rm_ioctl(&node, request, (uintptr_t)argument);
	return ret ? fail(-ret) : 0;
}

EXPORT int poll(struct pollfd *fds, nfds_t count, int timeout)
{
	const bool events = event_exists();
	int ret;

	if (events)
		event_begin_poll(fds, count);
	ret = libc()->poll(fds, count, timeout);
	if (events)
		event_end_poll(fds, count, ret);
	return ret;
}

EXPORT int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout,
		 const sigset_t *mask)
{
	const bool events = event_exists();
	int ret;

	if (events)
		event_begin_poll(fds, count);
	ret = libc()->ppoll(fds, count, timeout, mask);
	if (events)
		event_end_poll(fds, count, ret);
	return ret;
}

/* What epoll reports once is taken: as edges are. */
EXPORT int epoll_ctl(int epfd, int operation, int fd, struct epoll_event *event)
{
	struct epoll_event edge;
	bool is_event = false;
	struct open_node node;

	if (event && event_exists()) {
		ledger_lock();
		is_event = event_node(fd, &node);
		ledger_unlock();
	}
	if (!is_event)
		return libc()->epoll_ctl(epfd, operation, fd, event);
	edge = *event;
	edge.events |= EPOLLET;
	return libc()->epoll_ctl(epfd, operation, fd, &edge);
}

EXPORT int clock_gettime(clockid_t clock, struct timespec *time)
{
	return clock_look(clock, time, __builtin_return_address(0));
}

EXPORT void *mmap(void *address, size_t length, int prot, int flags, int fd, off_t offset)
{
	struct open_node node;

	if (flags & MAP_ANONYMOUS || fd < 0 || !node_of_fd(fd, &node))
		return libc()->mmap(address, length, prot, flags, fd, offset);
	return rm_mmap(&node, fd, address, length, prot, flags, offset);
}

EXPORT int munmap(void *address, size_t length)
{
	return rm_munmap(address, length);
}

EXPORT int close(int fd)
{
	return rm_close(fd);
}

/*
 * On 64-bit Linux the functions with 64 in their names are these under a second name. Those that
 * end in _2 are called by programs built with _FORTIFY_SOURCE, to open what exists.
 */
static_assert(sizeof(struct stat) == sizeof(struct stat64), "a 64-bit system");

#define SECOND_NAME(second, first) __asm__(".globl " #second "\n.set " #second ", " #first)

SECOND_NAME(open64, open);
SECOND_NAME(openat64, openat);
SECOND_NAME(__open_2, open);
SECOND_NAME(__open64_2, open);
SECOND_NAME(__openat_2, openat);
SECOND_NAME(__openat64_2, openat);
SECOND_NAME(fopen64, fopen);
SECOND_NAME(stat64, stat);
SECOND_NAME(lstat64, lstat);
SECOND_NAME(fstatat64, fstatat);
SECOND_NAME(fstat64, fstat);
SECOND_NAME(mmap64, mmap);

/*
 * For tests. What: clients, devices, objects, mappings (in RM), views (of mmap), files (open
 * descriptors of nodes), parts (channels and what they take, but for memory), channels,
 * dma_mappings, xids, violations, entries (of rings, so far), transfers (so far), stalls. -1 for
 * any other word.
 */
EXPORT int fakerm_count(const char *what);
EXPORT const char *fakerm_violation(int index);
EXPORT const char *fakerm_xid(int index);
EXPORT int fakerm_set_fault(const char *specification);
EXPORT void fakerm_pass_time(unsigned int seconds, bool at_look);

int fakerm_count(const char *what)
{
	int count;

	ledger_lock();
	ledger_reap();
	count = ledger_count(what);
	ledger_unlock();
	return count;
}

/* The text, or NULL; it stays valid. */
const char *fakerm_violation(int index)
{
	const char *text;

	ledger_lock();
	text = ledger_violation(index);
	ledger_unlock();
	return text;
}

const char *fakerm_xid(int index)
{
	const char *text;

	ledger_lock();
	text = ledger_xid(index);
	ledger_unlock();
	return text;
}

int fakerm_set_fault(const char *specification)
{
	int ret;

	ledger_lock();
	ret = fault_set(specification);
	ledger_unlock();
	return ret;
}

void fakerm_pass_time(unsigned int seconds, bool at_look)
{
	clock_pass(seconds, at_look);
}
