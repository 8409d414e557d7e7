/* SPDX-License-Identifier: MIT */
#include "standin.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

int gpu_memory_new(uint64_t size, bool scattered)
{
	struct gpustandin_block block = {
		.size = size,
		.flags = scattered ? GPUSTANDIN_SCATTERED : 0,
	};
	int fd = open(GPUSTANDIN_NODE, O_RDWR | O_CLOEXEC);
	int error;

	if (fd < 0)
		return -1;
	if (!ioctl(fd, GPUSTANDIN_CREATE, &block))
		return fd;
	error = errno;
	close(fd);
	errno = error;
	return -1;
}

int gpu_memory_place(int fd, uint64_t address)
{
	return ioctl(fd, GPUSTANDIN_REGISTER, &address);
}

int gpu_memory_free(int fd, uint64_t address)
{
	return ioctl(fd, GPUSTANDIN_UNREGISTER, &address);
}

bool gpu_memory_all_back(struct gpustandin_stats *stats)
{
	int fd = open(GPUSTANDIN_NODE, O_RDWR | O_CLOEXEC);
	bool back = false;

	for (int attempt = 0; attempt < 1000 && !back; attempt++) {
		if (attempt)
			poll(NULL, 0, 10);
		if (fd < 0 || ioctl(fd, GPUSTANDIN_STATS, stats)) {
			perror(GPUSTANDIN_NODE);
			exit(1);
		}
		back = !stats->blocks && !stats->registrations && !stats->pins &&
		       !stats->persistent_pins && !stats->pinned_pages;
	}
	close(fd);
	return back;
}
