/* SPDX-License-Identifier: MIT */
/* A worker of the storm: what it is born with, and the loop of its threads. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "guard.h"
#include "storm.h"

struct worker worker;

static pthread_barrier_t slots_are_clear;

/* What fails here was made to fail, and will not be the next time. */
void install_fd(int fd, int at)
{
	while (dup3(fd, at, O_CLOEXEC) < 0)
		;
	close(fd);
}

/* The owner's byte, four times. */
uint32_t mark_of(unsigned int owner)
{
	return 0x01010101 * (0x51 + owner);
}

/* The kernel stores zeros byte by byte, and may stop within a word: a part of a mark is left. */
bool may_hold(unsigned int owner, uint32_t found)
{
	for (uint32_t mark = mark_of(owner); found; found >>= 8, mark >>= 8) {
		if (found & 0xff && (found ^ mark) & 0xff)
			return false;
	}
	return true;
}

void install_nothing(int at)
{
	int fd;

	while ((fd = open("/dev/null", O_RDWR | O_CLOEXEC)) < 0)
		;
	install_fd(fd, at);
}

static char *reserve(size_t size)
{
	const uintptr_t mask = GDRDRV_GPU_PAGE_SIZE - 1;
	char *room = mmap(NULL, size + mask + 1, PROT_NONE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (room == MAP_FAILED)
		abort();
	return (char *)(((uintptr_t)room + mask) & ~mask);
}

static void lay_out(void)
{
	for (int i = 0; i < BLOCKS; i++) {
		pthread_mutex_init(&worker.blocks[i].lock, NULL);
		worker.blocks[i].address = reserve(BLOCK_ROOM);
		worker.blocks[i].window = reserve(BLOCK_ROOM);
	}
	for (int i = 0; i < SLOTS; i++) {
		worker.slots[i].address = reserve(BLOCK_ROOM);
		worker.slots[i].owner = worker.index;
	}
	for (unsigned int peer = 0; peer < storm->options.workers; peer++) {
		for (int i = 0; i < PEER_SLOTS; i++) {
			worker.peer_slots[peer][i].address = reserve(BLOCK_ROOM);
			worker.peer_slots[peer][i].owner = peer;
		}
	}
}

/*
 * From here on the kernel is asked for no other addresses than slots and windows, so that nothing
 * but their own mappings comes to be where they are.
 */
static void clear_slots(void)
{
	for (int i = 0; i < SLOTS; i++)
		munmap(worker.slots[i].address, BLOCK_ROOM);
	for (unsigned int peer = 0; peer < storm->options.workers; peer++) {
		for (int i = 0; i < PEER_SLOTS; i++)
			munmap(worker.peer_slots[peer][i].address, BLOCK_ROOM);
	}
}

static void open_descriptors(void)
{
	for (int fd = NODE_FD; fd < FIXED_FD_END; fd++)
		install_nothing(fd);
	for (int i = 0; i < NODES; i++)
		install_fd(open(GDRDRV_NODE, O_RDWR | O_CLOEXEC | O_NONBLOCK), NODE_FD + i);
}

/* With --faults: whether allocations fail for this thread, and for the children that it forks. */
static void allow_faults(const struct thread *thread, bool allow)
{
	while (write(thread->make_it_fail, allow ? "1" : "0", 1) != 1)
		;
}

/* The n-th chance to fail from now on is taken. */
static void fail_nth(struct thread *thread, unsigned int n)
{
	char text[12];
	int length = snprintf(text, sizeof(text), "%u", n);

	/* This very write may be what fails, and then nothing more will. */
	if (write(thread->fail_nth, text, length) != length)
		return;
}

static void do_one(struct thread *thread)
{
	enum operation operation = operation_choose(&thread->random);
	/* A child must not inherit it, and the frame of a signal is not to fail on purpose. */
	bool fails = storm->options.faults && operation != FORK && operation != TOUCH &&
		     operation != TOUCH_PEER && once_in(&thread->random, 4);
	int result;

	storm->doing[worker.index][thread->number] = operation;
	if (fails)
		fail_nth(thread, 1 + below(&thread->random, 16));
	/* Where fork fails to make a stack, the kernel prints a trace that looks like a fault's. */
	if (storm->options.faults && operation == FORK)
		allow_faults(thread, false);
	result = operation_run(operation, thread);
	if (storm->options.faults && operation == FORK)
		allow_faults(thread, true);
	if (fails)
		fail_nth(thread, 0);
	if (result != SKIPPED)
		record(thread, operation, result);
}

static void *thread_main(void *argument)
{
	struct thread *thread = argument;

	pthread_barrier_wait(&slots_are_clear);
	if (storm->options.faults) {
		thread->fail_nth = open("/proc/thread-self/fail-nth", O_RDWR | O_CLOEXEC);
		thread->make_it_fail = open("/proc/thread-self/make-it-fail", O_WRONLY | O_CLOEXEC);
		if (thread->fail_nth < 0 || thread->make_it_fail < 0)
			abort();
		allow_faults(thread, true);
	}
	while (!storm->stop) {
		do_one(thread);
		thread->done++;
	}
	storm->doing[worker.index][thread->number] = -1;
	return NULL;
}

void worker_main(unsigned int index, unsigned int incarnation)
{
	static struct thread threads[THREADS_MAX];
	static pthread_t ids[THREADS_MAX];
	struct random seeds = {storm->options.seed + ((uint64_t)index << 32) +
			       ((uint64_t)incarnation << 40)};

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	worker.index = index;
	guard_install();
	lay_out();
	open_descriptors();
	pthread_barrier_init(&slots_are_clear, NULL, storm->options.threads + 1);
	for (unsigned int i = 0; i < storm->options.threads; i++) {
		threads[i].number = i;
		threads[i].random.state = random_next(&seeds);
		if (pthread_create(&ids[i], NULL, thread_main, &threads[i]))
			abort();
	}
	clear_slots();
	pthread_barrier_wait(&slots_are_clear);
	for (unsigned int i = 0; i < storm->options.threads; i++)
		pthread_join(ids[i], NULL);
	_exit(0);
}
