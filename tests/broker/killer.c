// SPDX-License-Identifier: MIT
/*
 * Preloaded into a process that tests kill or interrupt: counts its calls of the functions below,
 * once before and once after each, and raises a signal at the one that it is told: the number in
 * $GDRPY_KILLER_SIGNAL, else SIGKILL.
 *
 * It is told by a file of one 64-bit number, which $GDRPY_KILLER names: the process in the upper
 * half, and how many steps it has left in the lower one. Both are in one word, so that who disarms
 * it knows whether the process lives.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t *order;
static int signal_number = SIGKILL;

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("GDRPY_KILLER"), *number = getenv("GDRPY_KILLER_SIGNAL");
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	void *shared;

	if (number)
		signal_number = atoi(number);
	if (fd < 0)
		return;
	shared = mmap(NULL, sizeof(*order), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (shared != MAP_FAILED)
		order = shared;
}

/* How many steps the process of an order had left, which no longer is to be killed. */
uint32_t disarm(uint64_t *at)
{
	return (uint32_t)__atomic_exchange_n(at, 0, __ATOMIC_ACQ_REL);
}

static void step(void)
{
	uint64_t now = order ? __atomic_load_n(order, __ATOMIC_ACQUIRE) : 0;

	do {
		if ((pid_t)(now >> 32) != getpid() || !(uint32_t)now)
			return;
	} while (!__atomic_compare_exchange_n(order, &now, now - 1, true, __ATOMIC_ACQ_REL,
					      __ATOMIC_ACQUIRE));
	if ((uint32_t)now == 1)
		raise(signal_number);
}

/* A function that counts, and calls the one that it hides. */
#define COUNTED(type, name, parameters, arguments)                                                 \
	type name parameters                                                                       \
	{                                                                                          \
		static type(*real) parameters;                                                     \
		type result;                                                                       \
                                                                                                   \
		if (!real)                                                                         \
			real = (type(*) parameters)dlsym(RTLD_NEXT, #name);                        \
		step();                                                                            \
		result = real arguments;                                                           \
		step();                                                                            \
		return result;                                                                     \
	}

COUNTED(int, close, (int fd), (fd))
COUNTED(int, dup, (int fd), (fd))
COUNTED(int, memfd_create, (const char *name, unsigned int flags), (name, flags))
COUNTED(int, ftruncate, (int fd, off_t size), (fd, size))
COUNTED(int, ftruncate64, (int fd, off64_t size), (fd, size))
COUNTED(int, fchmod, (int fd, mode_t mode), (fd, mode))
COUNTED(ssize_t, send, (int fd, const void *data, size_t size, int flags), (fd, data, size, flags))
COUNTED(ssize_t, recv, (int fd, void *data, size_t size, int flags), (fd, data, size, flags))
COUNTED(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags))
COUNTED(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags))
COUNTED(int, connect, (int fd, __CONST_SOCKADDR_ARG address, socklen_t size), (fd, address, size))
COUNTED(int, accept4, (int fd, __SOCKADDR_ARG address, socklen_t *size, int flags),
	(fd, address, size, flags))
COUNTED(int, epoll_ctl, (int poll, int op, int fd, struct epoll_event *event),
	(poll, op, fd, event))
COUNTED(int, epoll_wait, (int poll, struct epoll_event *events, int most, int timeout),
	(poll, events, most, timeout))
COUNTED(void *, mmap, (void *near, size_t size, int protection, int flags, int fd, off_t offset),
	(near, size, protection, flags, fd, offset))
COUNTED(void *, mmap64,
	(void *near, size_t size, int protection, int flags, int fd, off64_t offset),
	(near, size, protection, flags, fd, offset))
COUNTED(int, munmap, (void *address, size_t size), (address, size))
COUNTED(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t offset),
	(fd, data, size, offset))

/* The same for functions with one more argument at will. */
#define COUNTED_VARIADIC(name, first, second)                                                      \
	int name(first one, second two, ...)                                                       \
	{                                                                                          \
		static int (*real)(first, second, ...);                                            \
		va_list rest;                                                                      \
		long three;                                                                        \
		int result;                                                                        \
                                                                                                   \
		if (!real)                                                                         \
			real = (int (*)(first, second, ...))dlsym(RTLD_NEXT, #name);               \
		va_start(rest, two);                                                               \
		three = va_arg(rest, long);                                                        \
		va_end(rest);                                                                      \
		step();                                                                            \
		result = real(one, two, three);                                                    \
		step();                                                                            \
		return result;                                                                     \
	}

COUNTED_VARIADIC(open, const char *, int)
COUNTED_VARIADIC(open64, const char *, int)
COUNTED_VARIADIC(fcntl, int, int)
COUNTED_VARIADIC(fcntl64, int, int)
COUNTED_VARIADIC(ioctl, int, unsigned long)
