/* SPDX-License-Identifier: MIT */
#include "libc.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

static struct libc functions;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find(void *function, const char *name)
{
	void *address = dlsym(RTLD_NEXT, name);

	if (!address) {
		fprintf(stderr, "fakerm: this C library has no %s()\n", name);
		abort();
	}
	*(void **)function = address;
}

static void find_all(void)
{
	find(&functions.openat, "openat");
	find(&functions.fopen, "fopen");
	find(&functions.close, "close");
	find(&functions.ioctl, "ioctl");
	find(&functions.mmap, "mmap");
	find(&functions.munmap, "munmap");
	find(&functions.fstat, "fstat");
	find(&functions.fstatat, "fstatat");
	find(&functions.poll, "poll");
	find(&functions.ppoll, "ppoll");
	find(&functions.epoll_ctl, "epoll_ctl");
	find(&functions.faccessat, "faccessat");
	find(&functions.clock_gettime, "clock_gettime");
}

const struct libc *libc(void)
{
	pthread_once(&once, find_all);
	return &functions;
}
