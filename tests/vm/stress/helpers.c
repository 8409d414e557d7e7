/* SPDX-License-Identifier: MIT */
/* What closes the node besides processes, or looks on: rings of io_uring, readers, the unloader. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "closes.h"

#define RING_ENTRIES 8

static int ring_new(struct io_uring_params *params)
{
	*params = (struct io_uring_params){};
	return (int)syscall(SYS_io_uring_setup, RING_ENTRIES, params);
}

bool uring_is_there(void)
{
	struct io_uring_params params;
	int ring = ring_new(&params);

	if (ring >= 0)
		close(ring);
	return ring >= 0;
}

static void *map_ring(int ring, size_t size, off_t offset)
{
	void *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, ring, offset);

	if (mapped == MAP_FAILED)
		closes_fail("a ring cannot be mapped: %s", strerror(errno));
	return mapped;
}

/* Polls, and reads of events, which wait until the ring ends. */
static void submit_waits(struct random *random, int ring, const struct io_uring_params *params,
			 unsigned int files)
{
	static struct gdrdrv_event events[RING_ENTRIES];
	char *queue = map_ring(ring, params->sq_off.array + params->sq_entries * sizeof(uint32_t),
			       IORING_OFF_SQ_RING);
	struct io_uring_sqe *entries =
		map_ring(ring, params->sq_entries * sizeof(struct io_uring_sqe), IORING_OFF_SQES);
	uint32_t *array = (uint32_t *)(queue + params->sq_off.array);
	unsigned int count = below(random, RING_ENTRIES) + 1;

	for (unsigned int i = 0; i < count; i++) {
		entries[i] = (struct io_uring_sqe){
			.opcode = IORING_OP_POLL_ADD,
			.fd = (int)below(random, files),
			.flags = IOSQE_FIXED_FILE | (below(random, 2) ? IOSQE_ASYNC : 0),
			.poll32_events = POLLIN,
		};
		if (below(random, 2)) {
			entries[i].opcode = IORING_OP_READ;
			entries[i].poll32_events = 0;
			entries[i].addr = (uintptr_t)&events[i];
			entries[i].len = sizeof(events[i]);
		}
		array[i] = i;
	}
	atomic_store((_Atomic uint32_t *)(queue + params->sq_off.tail), count);
	record(SUBMIT, result_of(syscall(SYS_io_uring_enter, ring, count, 0, 0, NULL, 0)));
}

/* A ring whose fixed files are the nodes, and often the shares and the GPU memory. */
int uring_with_files(struct random *random)
{
	struct io_uring_params params;
	int ring = ring_new(&params), fds[NODES + SHARES + BLOCKS];
	unsigned int count = 0;

	if (ring < 0)
		closes_fail("io_uring: %s", strerror(errno));
	for (unsigned int i = 0; i < world.nodes; i++)
		fds[count++] = world.node_fd + i;
	for (unsigned int i = 0; i < SHARES && below(random, 8); i++)
		fds[count++] = world.share_fd + i;
	for (unsigned int i = 0; i < world.blocks && below(random, 2); i++)
		fds[count++] = world.view_fd + i;
	record(REGISTER,
	       result_of(syscall(SYS_io_uring_register, ring, IORING_REGISTER_FILES, fds, count)));
	/* Unregistering would wait for what waits. */
	if (below(random, 2))
		submit_waits(random, ring, &params, count);
	else if (once_in(random, 4))
		record(UNREGISTER, result_of(syscall(SYS_io_uring_register, ring,
						     IORING_UNREGISTER_FILES, NULL, 0)));
	return ring;
}

/* In pieces, and now and then not to the end. */
static void read_file(struct random *random, const char *path, enum event event)
{
	static char text[4096];
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	ssize_t got;

	record_event(event, result_of(fd));
	if (fd < 0)
		return;
	do {
		got = read(fd, text, 1 + below(random, sizeof(text)));
		record_event(event, result_of(got));
	} while (got > 0 && !once_in(random, 20));
	if (once_in(random, 20))
		linger(random);
	close(fd);
}

static void read_module(struct random *random)
{
	static const char *const paths[] = {
		"/proc/driver/gdrdrv/stats",
		"/proc/driver/gdrdrv/pins",
		"/proc/driver/gdrdrv/params",
		"/proc/driver/gdrdrv/nv_get_pages_refcount",
	};

	read_file(random, paths[below(random, 4)], READ_MODULE);
}

/* Opens the node anew, for this process. */
static void reopen(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);

	record(REOPEN, result_of(fd));
	if (fd >= 0)
		close(fd);
}

static void read_descriptors(struct random *random, pid_t owner, const char *folder, bool links)
{
	char path[64], target[PATH_MAX];
	struct dirent *entry;
	DIR *list;

	snprintf(path, sizeof(path), "/proc/%d/%s", owner, folder);
	list = opendir(path);
	record_event(READ_OWNER, result_of(list ? 0 : -1));
	while (list && (entry = readdir(list))) {
		if (atoi(entry->d_name) < FIXED_FD)
			continue;
		snprintf(path, sizeof(path), "/proc/%d/%s/%d", owner, folder, atoi(entry->d_name));
		if (!links)
			read_file(random, path, READ_OWNER);
		else if (once_in(random, 4))
			reopen(path);
		else
			record_event(READ_OWNER, result_of(readlink(path, target, sizeof(target))));
	}
	if (list)
		closedir(list);
}

static void read_owner(struct random *random, pid_t owner)
{
	char path[64];

	switch (below(random, 4)) {
	case 0:
		read_descriptors(random, owner, "fdinfo", false);
		break;
	case 1:
		read_descriptors(random, owner, "fd", true);
		break;
	default:
		snprintf(path, sizeof(path), "/proc/%d/%s", owner,
			 below(random, 2) ? "maps" : "smaps");
		read_file(random, path, READ_OWNER);
	}
}

void proc_reader(struct random random)
{
	while (!closes->stop) {
		pid_t owner = closes->rounds[below(&random, RUNNERS_MAX)].owner;

		if (owner && below(&random, 3))
			read_owner(&random, owner);
		else
			read_module(&random);
		linger(&random);
	}
	_exit(0);
}

void load_module(int fd)
{
	record_event(LOAD, result_of(syscall(SYS_finit_module, fd, "", 0)));
}

void unloader(struct random random)
{
	int module = open(closes->options.module, O_RDONLY | O_CLOEXEC), result;

	if (module < 0)
		closes_fail("%s: %s", closes->options.module, strerror(errno));
	while (!closes->stop) {
		result = result_of(syscall(SYS_delete_module, "gdrdrv", O_NONBLOCK));
		record_event(UNLOAD, result);
		if (!result) {
			linger(&random);
			load_module(module);
		}
		sched_yield();
	}
	_exit(0);
}
