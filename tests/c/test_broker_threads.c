/* SPDX-License-Identifier: MIT */
/*
 * Threads that share a connection to a broker, and children that are forked beside them. The broker
 * is a thread too, and goes away now and then.
 */
#define _GNU_SOURCE
#include "brokerlib/connection.h"
#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 4
#define ROUNDS 200
#define REGIONS 16
/* Requests after which the broker closes a connection. */
#define PATIENCE 37
#define SIZE 4096

static struct sockaddr_un address = {.sun_family = AF_UNIX};
static pthread_t server;
static int listener;
static int memory;
static atomic_int newest; /* the last connection */
static sem_t taken;
static atomic_bool silent;
static int forks;

struct asked {
	uint64_t id;
	char op[16];
};

static const struct broker_field asked_fields[] = {
	BROKER_FIELD(struct asked, id, "id", BROKER_TO_NUMBER, true),
	BROKER_FIELD(struct asked, op, "op", BROKER_TO_TEXT, false),
	{0},
};

static void put_number(struct broker_writer *writer, const char *key, int64_t number)
{
	broker_write_key(writer, key);
	broker_write_number(writer, number);
}

static void put_grant(struct broker_writer *writer)
{
	put_number(writer, "fds", 1);
	put_number(writer, "region", 7);
	put_number(writer, "nbytes", SIZE);
	put_number(writer, "size", SIZE);
	put_number(writer, "version", 1);
	put_number(writer, "device", -1);
	broker_write_key(writer, "sealed");
	broker_write_flag(writer, false);
	broker_write_key(writer, "readonly");
	broker_write_flag(writer, false);
	broker_write_key(writer, "enforced");
	broker_write_flag(writer, false);
	broker_write_key(writer, "name");
	broker_write_text(writer, "a");
	broker_write_key(writer, "metadata");
	broker_write_bytes(writer, "", 0);
}

static void put_reply(struct broker_writer *writer, const char *op, int64_t session)
{
	if (!strcmp(op, "hello")) {
		put_number(writer, "version", 1);
		put_number(writer, "session", session);
		broker_write_key(writer, "life");
		broker_write_text(writer, "0123456789abcdef0123456789abcdef");
	} else if (!strcmp(op, "resume")) {
		broker_write_key(writer, "lost");
		broker_write_list(writer, 0);
	} else if (!strcmp(op, "get")) {
		put_grant(writer);
	}
}

static void reply(int sock, const struct asked *asked, int64_t session)
{
	bool grants = !strcmp(asked->op, "get");
	unsigned char packet[512];
	struct broker_writer writer;
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
	struct iovec data;
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};

	broker_write_begin(&writer, packet, sizeof(packet));
	put_number(&writer, "id", (int64_t)asked->id);
	put_reply(&writer, asked->op, session);
	CHECK(!writer.full);
	data = (struct iovec){packet, (size_t)(writer.next - writer.start)};
	memcpy(CMSG_DATA(&control.header), &memory, sizeof(memory));
	if (grants) {
		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
	}
	sendmsg(sock, &message, MSG_NOSIGNAL);
}

/* Serve one connection: to its end, or for some requests. */
static void *serve_one(void *number)
{
	unsigned char packet[BROKER_PACKET_LIMIT];
	struct broker_reader reader;
	struct asked asked;
	int sock = newest;
	ssize_t nbytes;

	sem_post(&taken);
	for (int i = 0; i < PATIENCE && (nbytes = recv(sock, packet, sizeof(packet), 0)) > 0; i++) {
		asked = (struct asked){0};
		reader = (struct broker_reader){packet, packet + nbytes};
		CHECK(!broker_decode(&reader, asked_fields, &asked));
		if (asked.id && !silent)
			reply(sock, &asked, (intptr_t)number);
	}
	close(sock);
	return NULL;
}

static void *serve(void *unused)
{
	pthread_t thread;

	for (intptr_t session = 1; (newest = accept(listener, NULL, NULL)) >= 0; session++) {
		CHECK_EQ(pthread_create(&thread, NULL, serve_one, (void *)session), 0);
		pthread_detach(thread);
		sem_wait(&taken);
	}
	return unused;
}

static void start(void)
{
	snprintf(address.sun_path, sizeof(address.sun_path), "/tmp/gdrpy-test-%d.sock", getpid());
	memory = memfd_create("memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	CHECK_EQ(ftruncate(memory, SIZE), 0);
	CHECK_EQ(fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	CHECK_EQ(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
	CHECK_EQ(listen(listener, 16), 0);
	CHECK_EQ(sem_init(&taken, 0, 0), 0);
	silent = false;
	CHECK_EQ(pthread_create(&server, NULL, serve, NULL), 0);
}

static void stop(void)
{
	shutdown(listener, SHUT_RDWR);
	pthread_join(server, NULL);
	close(listener);
	close(memory);
	unlink(address.sun_path);
}

static void *use(void *broker)
{
	struct gdrpy_region *region;
	void *mapped;

	for (int round = 0; round < ROUNDS; round++) {
		CHECK_EQ(gdrpy_broker_get(broker, "a", 0, &region), 0);
		CHECK_EQ(gdrpy_region_map(region, &mapped), 0);
		CHECK_EQ(gdrpy_region_unmap(region, mapped), 0);
		CHECK_EQ(gdrpy_broker_delete(broker, "b"), 0);
		CHECK_EQ(gdrpy_broker_get(broker, "", 0, &region), GDRPY_BROKER_INVALID_REQUEST);
		CHECK(strstr(gdrpy_broker_error(), "get: name must be"));
		gdrpy_region_release(region);
	}
	return NULL;
}

static void threads_share_a_connection_that_is_made_anew(void)
{
	pthread_t users[THREADS];
	struct gdrpy_broker *broker;

	start();
	CHECK_EQ(gdrpy_broker_connect(address.sun_path, 10000, 10000, &broker), 0);
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_create(&users[i], NULL, use, broker), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(users[i], NULL);
	gdrpy_broker_close(broker);
	stop();
}

static void *check_and_release(void *regions)
{
	struct gdrpy_region **region = regions;
	int result;

	for (int i = 0; i < REGIONS; i++) {
		result = gdrpy_region_check(region[i]);
		CHECK(!result || result == GDRPY_BROKER_CLOSED);
		gdrpy_region_release(region[i]);
	}
	return NULL;
}

static void a_connection_is_closed_while_a_thread_releases_its_regions(void)
{
	struct gdrpy_region *regions[REGIONS];
	struct gdrpy_broker *broker;
	pthread_t thread;

	start();
	for (int round = 0; round < ROUNDS; round++) {
		CHECK_EQ(gdrpy_broker_connect(address.sun_path, 10000, 10000, &broker), 0);
		for (int i = 0; i < REGIONS; i++)
			CHECK_EQ(gdrpy_broker_get(broker, "a", 0, &regions[i]), 0);
		CHECK_EQ(pthread_create(&thread, NULL, check_and_release, regions), 0);
		for (int i = 0; i < round % 20; i++)
			sched_yield();
		gdrpy_broker_close(broker);
		pthread_join(thread, NULL);
	}
	stop();
}

#define IN_CHILD(condition)                                                                        \
	do {                                                                                       \
		pid_t child_ = fork();                                                             \
		int status_;                                                                       \
		if (!child_)                                                                       \
			_exit(!(condition));                                                       \
		CHECK_EQ(waitpid(child_, &status_, 0), child_);                                    \
		CHECK_EQ(status_, 0);                                                              \
	} while (0)

ssize_t __real_recvmsg(int sock, struct msghdr *message, int flags);

/* Forks a child while a descriptor arrives, if the test wants that. */
ssize_t __wrap_recvmsg(int sock, struct msghdr *message, int flags)
{
	ssize_t nbytes = __real_recvmsg(sock, message, flags);
	struct cmsghdr *beside = CMSG_FIRSTHDR(message);
	int fd;

	if (forks && beside) {
		memcpy(&fd, CMSG_DATA(beside), sizeof(fd));
		CHECK(fcntl(fd, F_GETFD) >= 0);
		IN_CHILD(fcntl(fd, F_GETFD) < 0);
		forks--;
	}
	return nbytes;
}

static void a_child_that_is_forked_during_a_grant_does_not_keep_its_memory(void)
{
	struct gdrpy_region *region;
	struct gdrpy_broker *broker;

	start();
	CHECK_EQ(gdrpy_broker_connect(address.sun_path, 10000, 10000, &broker), 0);
	forks = 1;
	CHECK_EQ(gdrpy_broker_get(broker, "a", 0, &region), 0);
	CHECK_EQ(forks, 0);
	IN_CHILD(fcntl(region->fd, F_GETFD) >= 0); /* of a region that the program has */
	gdrpy_region_release(region);
	gdrpy_broker_close(broker);
	stop();
}

static struct gdrpy_watch *open_watch(int timeout_ms)
{
	struct gdrpy_broker *broker;
	struct gdrpy_watch *watch;

	start();
	CHECK_EQ(gdrpy_broker_connect(address.sun_path, timeout_ms, 3600000, &broker), 0);
	CHECK_EQ(gdrpy_watch_open(broker, "", &watch), 0);
	gdrpy_broker_close(broker);
	return watch;
}

static void a_watch_looks_for_a_broker_no_longer_than_it_is_told(void)
{
	struct gdrpy_watch *watch = open_watch(10000);
	struct gdrpy_event event;

	CHECK_EQ(gdrpy_watch_next(watch, 10, &event), GDRPY_BROKER_TIMEOUT);
	shutdown(newest, SHUT_RDWR);
	stop();
	CHECK_EQ(gdrpy_watch_next(watch, 10, &event), GDRPY_BROKER_UNAVAILABLE);
	CHECK_EQ(gdrpy_watch_fd(watch), -1);
	start();
	CHECK_EQ(gdrpy_watch_next(watch, 10000, &event), 0);
	CHECK_EQ(event.kind, GDRPY_EVENT_LOST);
	gdrpy_watch_close(watch);
	stop();
}

static void a_watch_whose_broker_does_not_answer_is_not_one_without_an_event(void)
{
	struct gdrpy_watch *watch = open_watch(100);
	struct gdrpy_event event;

	silent = true;
	shutdown(newest, SHUT_RDWR);
	CHECK_EQ(gdrpy_watch_next(watch, 10000, &event), GDRPY_BROKER_UNAVAILABLE);
	CHECK(strstr(gdrpy_broker_error(), "did not answer within 100 ms"));
	gdrpy_watch_close(watch);
	stop();
}

static void a_watch_has_no_descriptor_in_a_forked_child(void)
{
	struct gdrpy_watch *watch = open_watch(10000);

	CHECK(gdrpy_watch_fd(watch) >= 0);
	IN_CHILD(gdrpy_watch_fd(watch) == -1);
	gdrpy_watch_close(watch);
	stop();
}

CHECK_MAIN(TEST(threads_share_a_connection_that_is_made_anew),
	   TEST(a_connection_is_closed_while_a_thread_releases_its_regions),
	   TEST(a_child_that_is_forked_during_a_grant_does_not_keep_its_memory),
	   TEST(a_watch_looks_for_a_broker_no_longer_than_it_is_told),
	   TEST(a_watch_whose_broker_does_not_answer_is_not_one_without_an_event),
	   TEST(a_watch_has_no_descriptor_in_a_forked_child))
