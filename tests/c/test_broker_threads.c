/* SPDX-License-Identifier: MIT */
/* Threads that share a connection to a broker, which is a thread too and goes away now and then. */
#define _GNU_SOURCE
#include "brokerlib/connection.h"
#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define THREADS 4
#define ROUNDS 200
/* Requests after which the broker closes a connection. */
#define PATIENCE 37
#define SIZE 4096

static struct sockaddr_un address = {.sun_family = AF_UNIX};
static int listener;
static int memory;

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
static void serve_one(int sock, int64_t session)
{
	unsigned char packet[BROKER_PACKET_LIMIT];
	struct broker_reader reader;
	struct asked asked;
	ssize_t nbytes;

	for (int i = 0; i < PATIENCE && (nbytes = recv(sock, packet, sizeof(packet), 0)) > 0; i++) {
		asked = (struct asked){0};
		reader = (struct broker_reader){packet, packet + nbytes};
		CHECK(!broker_decode(&reader, asked_fields, &asked));
		if (asked.id)
			reply(sock, &asked, session);
	}
	close(sock);
}

static void *serve(void *unused)
{
	int sock;

	for (int64_t session = 1; (sock = accept(listener, NULL, NULL)) >= 0; session++)
		serve_one(sock, session);
	return unused;
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
	pthread_t server, users[THREADS];
	struct gdrpy_broker *broker;

	snprintf(address.sun_path, sizeof(address.sun_path), "/tmp/gdrpy-test-%d.sock", getpid());
	memory = memfd_create("memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	CHECK_EQ(ftruncate(memory, SIZE), 0);
	CHECK_EQ(fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	CHECK_EQ(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
	CHECK_EQ(listen(listener, 16), 0);
	CHECK_EQ(pthread_create(&server, NULL, serve, NULL), 0);

	CHECK_EQ(gdrpy_broker_connect(address.sun_path, 10000, 10000, &broker), 0);
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_create(&users[i], NULL, use, broker), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(users[i], NULL);
	gdrpy_broker_close(broker);

	shutdown(listener, SHUT_RDWR);
	pthread_join(server, NULL);
	close(listener);
	close(memory);
	unlink(address.sun_path);
}

CHECK_MAIN(TEST(threads_share_a_connection_that_is_made_anew))
