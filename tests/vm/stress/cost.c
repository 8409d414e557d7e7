/* SPDX-License-Identifier: MIT */
/* How long pin, map, unmap and unpin take by the number of pages: medians of several rounds. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "gdrdrv.h"
#include "standin.h"

#define CPU_PAGE ((size_t)sysconf(_SC_PAGESIZE))
#define PAGES_MAX 65536
#define ROUNDS 15

enum step {
	PIN,
	MAP, /* and touch every page */
	UNMAP,
	UNPIN,
	STEPS,
};

static const char *const step_names[STEPS] = {"pin", "map", "unmap", "unpin"};

static void __attribute__((noreturn)) give_up(const char *what)
{
	fprintf(stderr, "cost: %s: %s\n", what, strerror(errno));
	exit(1);
}

static double now_us(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static void touch_all(const volatile char *mapped, size_t size)
{
	for (size_t at = 0; at < size; at += CPU_PAGE)
		(void)mapped[at];
}

/* One round: when each step ended. */
static void measure(int node, uint64_t address, size_t size, double ends[STEPS])
{
	struct gdrdrv_pin_buffer_v2 pin = {.addr = address, .size = size};
	struct gdrdrv_unpin_buffer unpin;
	char *mapped;

	if (ioctl(node, GDRDRV_IOC_PIN_BUFFER_V2, &pin))
		give_up("pin");
	ends[PIN] = now_us();

	mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, node,
		      (off_t)pin.handle * CPU_PAGE);
	if (mapped == MAP_FAILED)
		give_up("mmap");
	touch_all(mapped, size);
	ends[MAP] = now_us();

	if (munmap(mapped, size))
		give_up("munmap");
	ends[UNMAP] = now_us();

	unpin.handle = pin.handle;
	if (ioctl(node, GDRDRV_IOC_UNPIN_BUFFER, &unpin))
		give_up("unpin");
	ends[UNPIN] = now_us();
}

static int compare(const void *left, const void *right)
{
	double difference = *(const double *)left - *(const double *)right;

	return (difference > 0) - (difference < 0);
}

static void print_point(int node, uint64_t address, size_t pages)
{
	double times[STEPS][ROUNDS], ends[STEPS], start;

	for (int round = 0; round < ROUNDS; round++) {
		start = now_us();
		measure(node, address, pages * CPU_PAGE, ends);
		for (int step = 0; step < STEPS; step++) {
			times[step][round] = ends[step] - start;
			start = ends[step];
		}
	}
	printf("{\"pages\": %zu", pages);
	for (int step = 0; step < STEPS; step++) {
		qsort(times[step], ROUNDS, sizeof(double), compare);
		printf(", \"%s\": %.1f", step_names[step], times[step][ROUNDS / 2]);
	}
	printf("}");
}

static void print_layout(int node, bool scattered)
{
	const uintptr_t mask = GDRDRV_GPU_PAGE_SIZE - 1;
	size_t room_size = (size_t)PAGES_MAX * CPU_PAGE + mask + 1;
	int fd = gpu_memory_new((size_t)PAGES_MAX * CPU_PAGE, scattered);
	uint64_t address;
	char *room;

	if (fd < 0)
		give_up("GPU memory");
	room = mmap(NULL, room_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (room == MAP_FAILED)
		give_up("address space");
	address = ((uintptr_t)room + mask) & ~mask;
	if (gpu_memory_place(fd, address))
		give_up("GPU memory");

	printf("\"%s\": [", scattered ? "scattered" : "contiguous");
	for (size_t pages = 1; pages <= PAGES_MAX; pages *= 4) {
		printf("%s", pages > 1 ? ", " : "");
		print_point(node, address, pages);
	}
	printf("]");
	munmap(room, room_size);
	close(fd);
}

int main(void)
{
	int node = open(GDRDRV_NODE, O_RDWR | O_CLOEXEC);

	if (node < 0)
		give_up(GDRDRV_NODE);
	printf("{\"rounds\": %d, \"steps\": [", ROUNDS);
	for (int step = 0; step < STEPS; step++)
		printf("%s\"%s\"", step ? ", " : "", step_names[step]);
	printf("], \"layouts\": {");
	print_layout(node, false);
	printf(", ");
	print_layout(node, true);
	printf("}}\n");
	close(node);
	return 0;
}
