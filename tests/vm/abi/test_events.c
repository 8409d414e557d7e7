/* SPDX-License-Identifier: MIT */
/* Revocations are read from the node: each once, in order, and a full queue says so. */
#include "rig.h"

#include <pthread.h>

enum {
	ROOM = 128
};

struct rig {
	struct gpu gpu;
	int node;
};

static struct rig made(void)
{
	struct rig rig = {.gpu = gpu_alloc(1), .node = open("/dev/gdrdrv", O_RDWR | O_NONBLOCK)};

	CHECK(rig.node >= 0);
	return rig;
}

static uint64_t pin_revocable(const struct rig *rig)
{
	uint64_t handle;

	CHECK_EQ(pin_v3(rig->node, rig->gpu.va, GPU_PAGE, ABI_V3_REVOCABLE, &handle), 0);
	return handle;
}

/* The memory is freed under a pin, and is there again; the handle that the event names. */
static uint64_t revoke_one(const struct rig *rig)
{
	uint64_t handle = pin_revocable(rig);

	gpu_free(&rig->gpu);
	gpu_register(&rig->gpu);
	CHECK_EQ(unpin(rig->node, handle), 0);
	return handle;
}

static void check_event(const struct abi_event *event, uint64_t handle, uint64_t sequence)
{
	CHECK_EQ(event->kind, ABI_REVOKED);
	CHECK_EQ(event->handle, handle);
	CHECK_EQ(event->sequence, sequence);
	CHECK_EQ(event->lost, 0);
}

static void check_no_more(int node)
{
	struct abi_event event;

	CHECK(!is_ready(node, POLLIN));
	CHECK_EQ(read_events(node, &event, 1), -EAGAIN);
}

static void each_revocation_is_told_once(void)
{
	struct rig rig = made();
	struct abi_event events[4];
	uint64_t handle;

	check_no_more(rig.node);
	for (uint64_t sequence = 1; sequence < 10; sequence++) {
		handle = revoke_one(&rig);
		CHECK(is_ready(rig.node, POLLIN));
		CHECK_EQ(read_events(rig.node, events, 4), sizeof(*events));
		check_event(events, handle, sequence);
		check_no_more(rig.node);
	}
}

static void pins_of_the_same_memory_are_told_one_by_one(void)
{
	struct rig rig = made();
	struct abi_event events[8];
	uint64_t sum = 0;

	for (int i = 0; i < 4; i++)
		sum += pin_revocable(&rig);
	gpu_free(&rig.gpu);
	CHECK_EQ(read_events(rig.node, events, 8), 4 * sizeof(*events));
	for (int i = 0; i < 4; i++) {
		check_event(&events[i], events[i].handle, i + 1);
		sum -= events[i].handle;
		for (int k = 0; k < i; k++)
			CHECK(events[i].handle != events[k].handle);
	}
	CHECK_EQ(sum, 0);
	check_no_more(rig.node);
}

static void other_ends_of_pins_are_not_told(void)
{
	struct rig rig = made();
	uint64_t persistent;

	CHECK_EQ(pin(rig.node, rig.gpu.va, GPU_PAGE, &persistent), 0);
	CHECK_EQ(unpin(rig.node, pin_revocable(&rig)), 0);
	gpu_free(&rig.gpu);
	CHECK_EQ(unpin(rig.node, persistent), 0);
	check_no_more(rig.node);
}

static void only_the_node_that_pinned_is_told(void)
{
	struct rig rig = made();
	int other = open("/dev/gdrdrv", O_RDWR | O_NONBLOCK);
	struct abi_event event;

	revoke_one(&rig);
	check_no_more(other);
	CHECK_EQ(read_events(rig.node, &event, 1), sizeof(event));
}

static void only_whole_events_are_read(void)
{
	struct rig rig = made();
	struct abi_event events[3];
	uint64_t first = revoke_one(&rig), second = revoke_one(&rig), third = revoke_one(&rig);

	for (size_t size = 0; size < sizeof(*events); size++) {
		CHECK_EQ(read(rig.node, events, size), -1);
		CHECK_EQ(errno, EINVAL);
	}
	CHECK_EQ(read(rig.node, events, sizeof(*events) + 23), sizeof(*events));
	check_event(events, first, 1);
	CHECK_EQ(read(rig.node, events, sizeof(events)), 2 * sizeof(*events));
	check_event(&events[0], second, 2);
	check_event(&events[1], third, 3);
}

static void an_event_that_cannot_be_copied_is_not_lost(void)
{
	struct rig rig = made();
	unsigned char *pages = mmap(NULL, 2 * CPU_PAGE, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct abi_event *last = (void *)(pages + CPU_PAGE - sizeof(*last));
	struct abi_event event;
	uint64_t first, second;

	CHECK_EQ(munmap(pages + CPU_PAGE, CPU_PAGE), 0);
	first = revoke_one(&rig);
	second = revoke_one(&rig);
	CHECK_EQ(read_events(rig.node, (void *)(pages + CPU_PAGE), 1), -EFAULT);
	CHECK_EQ(read_events(rig.node, (void *)((char *)last + 1), 1), -EFAULT);
	/* The first fits, the second does not. */
	CHECK_EQ(read_events(rig.node, last, 2), sizeof(*last));
	check_event(last, first, 1);
	CHECK_EQ(read_events(rig.node, &event, 1), sizeof(event));
	check_event(&event, second, 2);
	check_no_more(rig.node);
}

/* Revokes so many; then as many as there is room for are read, and how many were not. */
static void overflow(const struct rig *rig, uint64_t first, unsigned int lost)
{
	static struct abi_event events[2 * ROOM];
	uint64_t handles[ROOM];

	for (unsigned int i = 0; i < ROOM + lost; i++) {
		uint64_t handle = revoke_one(rig);

		if (i < ROOM)
			handles[i] = handle;
	}
	CHECK_EQ(read_events(rig->node, events, 2 * ROOM), (ROOM + (lost != 0)) * sizeof(*events));
	for (unsigned int i = 0; i < ROOM; i++)
		check_event(&events[i], handles[i], first + i);
	if (lost) {
		CHECK_EQ(events[ROOM].kind, ABI_OVERFLOW);
		CHECK_EQ(events[ROOM].lost, lost);
		CHECK_EQ(events[ROOM].sequence, first + ROOM);
	}
	check_no_more(rig->node);
}

static void a_full_queue_tells_how_many_were_lost(void)
{
	struct rig rig = made();

	overflow(&rig, 1, 0);
	overflow(&rig, 1 + ROOM, 1);
	overflow(&rig, 2 + 2 * ROOM, 172);
}

static void events_after_an_overflow_are_told_again(void)
{
	struct rig rig = made();
	struct abi_event event;
	uint64_t handle;

	overflow(&rig, 1, 5);
	handle = revoke_one(&rig);
	CHECK_EQ(read_events(rig.node, &event, 1), sizeof(event));
	check_event(&event, handle, ROOM + 5 + 1);
}

/* While some are lost all are, so that order is kept. */
static void events_are_lost_until_the_reader_was_told(void)
{
	struct rig rig = made();
	struct abi_event events[ROOM];

	for (int i = 0; i < ROOM + 1; i++)
		revoke_one(&rig);
	CHECK_EQ(read_events(rig.node, events, ROOM - 1), (ROOM - 1) * sizeof(*events));
	revoke_one(&rig);
	CHECK_EQ(read_events(rig.node, events, 3), 2 * sizeof(*events));
	CHECK_EQ(events[0].sequence, ROOM);
	CHECK_EQ(events[1].kind, ABI_OVERFLOW);
	CHECK_EQ(events[1].lost, 2);
}

struct reader {
	int node;
	_Atomic pid_t thread;
	ssize_t got;
	struct abi_event event;
};

static void *read_one(void *data)
{
	struct reader *reader = data;

	reader->thread = gettid();
	reader->got = read_events(reader->node, &reader->event, 1);
	return NULL;
}

static void *poll_one(void *data)
{
	struct reader *reader = data;
	struct pollfd poller = {.fd = reader->node, .events = POLLIN};

	reader->thread = gettid();
	CHECK_EQ(poll(&poller, 1, -1), 1);
	CHECK_EQ(poller.revents, POLLIN);
	return NULL;
}

static void await_sleep(const struct reader *reader)
{
	char path[64], text[256], state = 0;

	while (!reader->thread)
		sched_yield();
	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", reader->thread);
	while (state != 'S') {
		FILE *file = fopen(path, "r");

		CHECK(file != NULL);
		CHECK(fgets(text, sizeof(text), file) != NULL);
		fclose(file);
		state = strrchr(text, ')')[2];
		sched_yield();
	}
}

static void a_sleeping_reader_is_woken(void)
{
	void *(*const sleepers[])(void *) = {read_one, poll_one};

	for (int i = 0; i < 2; i++) {
		struct rig rig = {.gpu = gpu_alloc(1), .node = open_node()};
		struct reader reader = {.node = rig.node};
		pthread_t thread;
		uint64_t handle;

		CHECK_EQ(pthread_create(&thread, NULL, sleepers[i], &reader), 0);
		await_sleep(&reader);
		handle = revoke_one(&rig);
		CHECK_EQ(pthread_join(thread, NULL), 0);
		if (sleepers[i] == poll_one)
			read_one(&reader);
		CHECK_EQ(reader.got, sizeof(reader.event));
		check_event(&reader.event, handle, 1);
	}
}

static void interrupted(int number)
{
	(void)number;
}

static void a_sleeping_reader_is_interrupted_by_a_signal(void)
{
	struct sigaction action = {.sa_handler = interrupted};
	struct reader reader = {.node = open_node()};
	pthread_t thread;

	CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
	CHECK_EQ(pthread_create(&thread, NULL, read_one, &reader), 0);
	await_sleep(&reader);
	CHECK_EQ(pthread_kill(thread, SIGUSR1), 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(reader.got, -EINTR);
}

RIG_MAIN(TEST(each_revocation_is_told_once), TEST(pins_of_the_same_memory_are_told_one_by_one),
	 TEST(other_ends_of_pins_are_not_told), TEST(only_the_node_that_pinned_is_told),
	 TEST(only_whole_events_are_read), TEST(an_event_that_cannot_be_copied_is_not_lost),
	 TEST(a_full_queue_tells_how_many_were_lost), TEST(events_after_an_overflow_are_told_again),
	 TEST(events_are_lost_until_the_reader_was_told), TEST(a_sleeping_reader_is_woken),
	 TEST(a_sleeping_reader_is_interrupted_by_a_signal))
