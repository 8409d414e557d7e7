/* SPDX-License-Identifier: MIT */
/* For LD_PRELOAD: the kernel module answers as NVIDIA's, which knows nothing of this project's. */
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <sys/ioctl.h>

#include "uapi/gdrdrv.h"

int ioctl(int fd, unsigned long request, ...)
{
	int (*next)(int, unsigned long, ...) =
		(int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
	va_list arguments;
	void *argument;

	va_start(arguments, request);
	argument = va_arg(arguments, void *);
	va_end(arguments);
	switch ((unsigned int)request) {
	case GDRDRV_IOC_FEATURES:
	case GDRDRV_IOC_PIN_V3:
	case GDRDRV_IOC_SHARE:
		errno = ENOTTY;
		return -1;
	}
	return next(fd, request, argument);
}
