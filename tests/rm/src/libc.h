/* SPDX-License-Identifier: MIT */
/*
 * The C library's own functions, past the ones this library puts in front of them. Everything
 * inside the simulated RM calls these, so that it never meets itself.
 */
#ifndef FAKERM_LIBC_H
#define FAKERM_LIBC_H

#include <poll.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

struct libc {
	int (*openat)(int dirfd, const char *path, int flags, ...);
	FILE *(*fopen)(const char *path, const char *mode);
	int (*close)(int fd);
	int (*ioctl)(int fd, unsigned long request, ...);
	void *(*mmap)(void *address, size_t length, int prot, int flags, int fd, off_t offset);
	int (*munmap)(void *address, size_t length);
	int (*fstat)(int fd, struct stat *st);
	int (*fstatat)(int dirfd, const char *path, struct stat *st, int flags);
	int (*poll)(struct pollfd *fds, nfds_t count, int timeout);
	int (*ppoll)(struct pollfd *fds, nfds_t count, const struct timespec *timeout,
		     const sigset_t *mask);
	int (*epoll_ctl)(int epfd, int operation, int fd, struct epoll_event *event);
	int (*faccessat)(int dirfd, const char *path, int mode, int flags);
	int (*clock_gettime)(clockid_t clock, struct timespec *time);
};

const struct libc *libc(void);

#endif
