/* SPDX-License-Identifier: MIT */
/* Watching: a separate connection on which events come. */
#include "brokerlib/connection.h"

#include "common/forks.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FOREVER INT64_MAX

struct gdrpy_watch {
	struct gdrpy_broker *connection;
	int reconnect_ms;
	char prefix[GDRPY_BROKER_NAME_BYTES];
};

struct told {
	struct gdrpy_event event;
	char kind[32];
};

static const struct broker_field event_fields[] = {
	BROKER_FIELD(struct told, kind, "event", BROKER_TO_TEXT, false),
	BROKER_FIELD(struct told, event.number, "region", BROKER_TO_NUMBER, true),
	BROKER_FIELD(struct told, event.version, "version", BROKER_TO_NUMBER, true),
	BROKER_FIELD(struct told, event.name, "name", BROKER_TO_TEXT, true),
	{0},
};

static const char *const kinds[] = {
	[GDRPY_EVENT_ALLOCATED] = "allocated", [GDRPY_EVENT_PUBLISHED] = "published",
	[GDRPY_EVENT_SEALED] = "sealed",       [GDRPY_EVENT_DELETED] = "deleted",
	[GDRPY_EVENT_ENDED] = "ended",	       [GDRPY_EVENT_FREED] = "freed",
	[GDRPY_EVENT_LOST] = "lost",
};

/* Have the broker send events. */
static int begin(struct gdrpy_watch *watch)
{
	struct broker_request request;

	broker_request_begin(&request, "watch");
	broker_request_name(&request, "prefix", watch->prefix, 0);
	return broker_ask(watch->connection, &request, NULL, NULL, NULL);
}

int gdrpy_watch_open(struct gdrpy_broker *broker, const char *prefix, struct gdrpy_watch **made)
{
	struct gdrpy_watch *watch;
	int result = broker_enter(broker, "watch");

	if (result)
		return result;
	broker_leave(broker);
	watch = calloc(1, sizeof(*watch));
	if (!watch)
		return broker_fail(GDRPY_BROKER_OUT_OF_MEMORY, "watch: %m");
	if (!prefix || (size_t)snprintf(watch->prefix, sizeof(watch->prefix), "%s", prefix) >=
			       sizeof(watch->prefix))
		result = broker_fail(GDRPY_BROKER_INVALID_REQUEST,
				     "watch: prefix must be text of up to %d bytes",
				     GDRPY_BROKER_NAME_BYTES - 1);
	if (!result)
		result = broker_new(broker->path, broker->timeout_ms, broker->reconnect_ms,
				    &watch->connection);
	watch->reconnect_ms = broker->reconnect_ms;
	if (!result)
		result = begin(watch);
	if (result)
		gdrpy_watch_close(watch);
	else
		*made = watch;
	return result;
}

int gdrpy_watch_fd(const struct gdrpy_watch *watch)
{
	return watch->connection->pid == getpid() ? watch->connection->sock : -1;
}

/* The milliseconds left until a time of broker_now_ms(); -1 for no limit. */
static int left_until(int64_t deadline)
{
	int64_t left = deadline - broker_now_ms();

	return deadline == FOREVER ? -1 : left < 0 ? 0 : (int)left;
}

/* Wait for a packet; false if none comes in time. */
static bool wait_for_packet(int sock, int64_t deadline)
{
	struct pollfd poller = {.fd = sock, .events = POLLIN};
	int ready;

	do {
		ready = poll(&poller, 1, left_until(deadline));
	} while (ready < 0 && errno == EINTR);
	return ready;
}

/* Watch again, on a new connection, for which the broker is looked for until the deadline. */
static int begin_again(struct gdrpy_watch *watch, int64_t deadline)
{
	int left = left_until(deadline), result;

	broker_break_off(watch->connection);
	watch->connection->reconnect_ms =
		left < 0 || left > watch->reconnect_ms ? watch->reconnect_ms : left;
	result = begin(watch);
	/* A timeout would say that nothing happened. */
	return result == GDRPY_BROKER_TIMEOUT ? GDRPY_BROKER_UNAVAILABLE : result;
}

/* One event that has come. */
static int receive_event(struct gdrpy_broker *connection, struct gdrpy_event *event)
{
	struct told told = {0};
	struct broker_packet packet;
	const char *wrong;
	int result = broker_receive(connection, &packet);

	if (result)
		return result;
	core_private_close(packet.fd);
	wrong = broker_decode(&packet.bytes, event_fields, &told);
	if (wrong || packet.bytes.next != packet.bytes.end)
		return broker_malformed(connection, "watch", wrong ? wrong : "end");
	for (int kind = GDRPY_EVENT_ALLOCATED; kind <= GDRPY_EVENT_LOST; kind++)
		if (!strcmp(kinds[kind], told.kind))
			told.event.kind = (enum gdrpy_event_kind)kind;
	*event = told.event;
	return 0;
}

static int next_event(struct gdrpy_watch *watch, int timeout_ms, struct gdrpy_event *event)
{
	int64_t deadline = timeout_ms < 0 ? FOREVER : broker_now_ms() + timeout_ms;
	struct gdrpy_broker *connection = watch->connection;
	int result = BROKER_GONE_AWAY;

	if (connection->sock >= 0) {
		if (!wait_for_packet(connection->sock, deadline))
			return broker_fail(GDRPY_BROKER_TIMEOUT,
					   "watch: nothing happened within %d ms", timeout_ms);
		result = receive_event(connection, event);
	}
	if (!broker_is_cut_off(result))
		return result;
	result = begin_again(watch, deadline);
	if (!result)
		*event = (struct gdrpy_event){.kind = GDRPY_EVENT_LOST};
	return result;
}

int gdrpy_watch_next(struct gdrpy_watch *watch, int timeout_ms, struct gdrpy_event *event)
{
	int result = broker_enter(watch->connection, "watch");

	if (result)
		return result;
	result = next_event(watch, timeout_ms, event);
	broker_leave(watch->connection);
	return result;
}

void gdrpy_watch_close(struct gdrpy_watch *watch)
{
	if (!watch)
		return;
	broker_close(watch->connection);
	free(watch);
}
