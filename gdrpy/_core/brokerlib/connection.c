/* SPDX-License-Identifier: MIT */
#include "brokerlib/connection.h"

#include "common/forks.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define PROTOCOL_VERSION 1
#define BATCH_LIMIT 4096
/* All numbers from here on are equally long in a packet. */
#define FIRST_ID (1ll << 32)
#define FIRST_PAUSE_MS 5
#define LAST_PAUSE_MS 250

int64_t broker_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Requests */

static void begin_in(struct broker_request *request, const char *call, void *buffer, size_t nbytes)
{
	request->call = call;
	request->result = 0;
	request->lease = NULL;
	broker_write_begin(&request->writer, buffer, nbytes);
	broker_write_key(&request->writer, "op");
	broker_write_text(&request->writer, call);
	broker_write_key(&request->writer, "id");
	request->id_at = (size_t)(request->writer.next - request->writer.start);
	broker_write_number(&request->writer, FIRST_ID);
}

void broker_request_begin(struct broker_request *request, const char *call)
{
	begin_in(request, call, request->bytes, sizeof(request->bytes));
}

void broker_request_name(struct broker_request *request, const char *key, const char *name,
			 size_t least)
{
	size_t nbytes = name ? strlen(name) : 0;
	char quoted[96];

	broker_write_key(&request->writer, key);
	if (name && nbytes >= least && nbytes < GDRPY_BROKER_NAME_BYTES &&
	    broker_is_text(name, nbytes))
		broker_write_text(&request->writer, name);
	else
		request->result = broker_fail(
			GDRPY_BROKER_INVALID_REQUEST,
			"%s: %s must be UTF-8 text of %zu to %d bytes, not %s", request->call, key,
			least, GDRPY_BROKER_NAME_BYTES - 1, broker_quote(quoted, name));
}

static void set_id(struct broker_request *request, uint64_t id)
{
	struct broker_writer writer = request->writer;

	writer.next = writer.start + request->id_at;
	broker_write_number(&writer, (int64_t)id);
}

/* Sockets. Forked children close them, so that the broker sees the end of this process. */

/* Why a packet did not go or come; 0: the peer closed the connection. */
static int failure(struct gdrpy_broker *broker, int error)
{
	broker->lost_errno = error ? error : ECONNRESET;
	if (error == EAGAIN)
		return BROKER_SILENT;
	return error == ECONNRESET || error == EPIPE ? BROKER_UNREAD : BROKER_GONE_AWAY;
}

static void close_socket(int *sock)
{
	if (*sock >= 0)
		core_private_close(*sock);
	*sock = -1;
}

/* The mode of a file, 0 if it is gone. */
static mode_t mode_of(const char *path)
{
	struct stat about;

	return stat(path, &about) ? 0 : about.st_mode;
}

/* The refusal to enter a folder of the socket's path, or else to connect to the socket. */
static int not_admitted(const char *path, int error)
{
	char inside[sizeof(((struct sockaddr_un *)0)->sun_path) + sizeof("/.")], barred[160];
	const char *slash = path;
	struct stat about;

	snprintf(barred, sizeof(barred), "the socket (mode %04o)", mode_of(path) & 07777);
	while ((slash = strchr(slash + 1, '/'))) {
		int length = (int)(slash - path);

		snprintf(inside, sizeof(inside), "%.*s/.", length, path);
		if (!stat(inside, &about))
			continue;
		if (errno == EACCES) {
			inside[length] = '\0';
			snprintf(barred, sizeof(barred), "the folder %s (mode %04o)", inside,
				 mode_of(inside) & 07777);
		}
		break;
	}
	errno = error;
	return broker_fail(
		GDRPY_BROKER_PERMISSION_DENIED,
		"connecting to %s: %m; %s does not admit this user: start a broker of your own by "
		"'gdrpy serve', or have one started there with --group or --mode",
		path, barred);
}

static int dial(struct gdrpy_broker *broker)
{
	struct timeval limit = {broker->timeout_ms / 1000, broker->timeout_ms % 1000 * 1000};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int64_t deadline = broker_now_ms() + broker->timeout_ms;
	mode_t mode;
	int failed;

	core_forks_hold();
	broker->sock = core_private_note(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
	core_forks_let_go();
	if (broker->sock < 0)
		return broker_fail(GDRPY_BROKER_OUT_OF_MEMORY, "connect: socket: %m");
	setsockopt(broker->sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	setsockopt(broker->sock, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	strcpy(address.sun_path, broker->path);
	do {
		failed = connect(broker->sock, (struct sockaddr *)&address, sizeof(address));
	} while (failed && errno == EINTR && broker_now_ms() < deadline);
	if (!failed)
		return 0;
	failed = failure(broker, errno == EINTR ? EAGAIN : errno);
	close_socket(&broker->sock);
	if (broker->lost_errno == EACCES || broker->lost_errno == EPERM)
		return not_admitted(broker->path, broker->lost_errno);
	mode = mode_of(broker->path);
	if (broker->lost_errno == ECONNREFUSED && mode && !S_ISSOCK(mode))
		broker->lost_errno = ENOTSOCK;
	return failed;
}

static int send_packet(struct gdrpy_broker *broker, const struct broker_writer *packet)
{
	int64_t deadline = broker_now_ms() + broker->timeout_ms;
	size_t nbytes = (size_t)(packet->next - packet->start);
	ssize_t sent;

	do {
		sent = send(broker->sock, packet->start, nbytes, MSG_NOSIGNAL);
	} while (sent < 0 && errno == EINTR && broker_now_ms() < deadline);
	return sent < 0 ? failure(broker, errno == EINTR ? EAGAIN : errno) : 0;
}

/* The descriptor that came beside a packet, or -1. */
static int descriptor_of(struct msghdr *message)
{
	struct cmsghdr *beside = CMSG_FIRSTHDR(message);
	int fd = -1;

	if (beside && beside->cmsg_level == SOL_SOCKET && beside->cmsg_type == SCM_RIGHTS &&
	    beside->cmsg_len >= CMSG_LEN(sizeof(fd)))
		memcpy(&fd, CMSG_DATA(beside), sizeof(fd));
	return fd;
}

static void close_descriptor(struct broker_packet *packet)
{
	if (packet->fd >= 0)
		core_private_close(packet->fd);
	packet->fd = -1;
}

/*
 * Receive once, with room for one descriptor, which is private: a child that is forked meanwhile
 * would keep the memory. Returns the number of bytes, or -1 with errno set.
 */
static ssize_t receive_once(struct gdrpy_broker *broker, struct broker_packet *packet, int *flags)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec data = {broker->packet, sizeof(broker->packet)};
	/* CMSG_SPACE() would have room for a second descriptor. */
	struct msghdr message = {.msg_iov = &data,
				 .msg_iovlen = 1,
				 .msg_control = &control,
				 .msg_controllen = CMSG_LEN(sizeof(int))};
	struct core_arrival arrival = {(const int *)CMSG_DATA(&control.header), 1, NULL};
	ssize_t nbytes;
	int error;

	memset(&control, -1, sizeof(control));
	core_arrival_begin(&arrival);
	nbytes = recvmsg(broker->sock, &message, MSG_CMSG_CLOEXEC);
	error = errno;
	packet->fd = nbytes < 0 ? -1 : descriptor_of(&message);
	packet->cut = message.msg_flags & MSG_CTRUNC;
	if (packet->fd < 0) {
		core_arrival_end(&arrival, NULL, 0);
	} else {
		core_arrival_end(&arrival, &packet->fd, 1);
		packet->cut |= packet->fd < 0; /* without memory */
	}
	*flags = message.msg_flags;
	errno = error;
	return nbytes;
}

int broker_receive(struct gdrpy_broker *broker, struct broker_packet *packet)
{
	int64_t deadline = broker_now_ms() + broker->timeout_ms;
	ssize_t nbytes;
	int flags;

	do {
		nbytes = receive_once(broker, packet, &flags);
	} while (nbytes < 0 && errno == EINTR && broker_now_ms() < deadline);
	if (nbytes < 0)
		return failure(broker, errno == EINTR ? EAGAIN : errno);
	packet->bytes = (struct broker_reader){broker->packet, broker->packet + nbytes};
	if (nbytes && !(flags & MSG_TRUNC))
		return 0;
	close_descriptor(packet);
	if (!nbytes)
		return failure(broker, 0);
	broker_break_off(broker);
	return broker_fail(GDRPY_BROKER_PROTOCOL_ERROR,
			   "the broker's packet has more than %d bytes", BROKER_PACKET_LIMIT);
}

/* Disconnect from a peer that is gone. */
static void hang_up(struct gdrpy_broker *broker)
{
	close_socket(&broker->sock);
}

void broker_break_off(struct gdrpy_broker *broker)
{
	if (broker->sock >= 0 && broker->greeted && broker->nleases) {
		broker->sessions[broker->nsessions - 1].sock = broker->sock;
		broker->sock = -1;
	}
	hang_up(broker);
}

/* Disconnect after a call that failed. */
static void cut_off(struct gdrpy_broker *broker, int result)
{
	if (result == BROKER_SILENT)
		broker_break_off(broker);
	else if (broker_is_cut_off(result))
		hang_up(broker);
}

/* Forget the oldest session, which closes its socket. */
static void forget_session(struct gdrpy_broker *broker)
{
	close_socket(&broker->sessions[0].sock);
	broker->nsessions--;
	memmove(broker->sessions, broker->sessions + 1,
		broker->nsessions * sizeof(*broker->sessions));
}

static void forget_sessions(struct gdrpy_broker *broker)
{
	while (broker->nsessions)
		forget_session(broker);
}

/* Replies */

struct header {
	uint64_t id, fds;
	struct broker_reader error, message;
};

static const struct broker_field header_fields[] = {
	BROKER_FIELD(struct header, id, "id", BROKER_TO_NUMBER, false),
	BROKER_FIELD(struct header, fds, "fds", BROKER_TO_NUMBER, true),
	BROKER_FIELD(struct header, error, "error", BROKER_TO_MESSAGE, true),
	BROKER_FIELD(struct header, message, "message", BROKER_TO_MESSAGE, true),
	{0},
};

static const char *const names[] = {
	"OK",
	"NotFound",
	"Gone",
	"PermissionDenied",
	"SizeMismatch",
	"Sealed",
	"QuotaExceeded",
	"TooLarge",
	"OutOfMemory",
	"BackendUnavailable",
	"InvalidRequest",
	"ProtocolError",
	"BrokerUnavailable",
	"Timeout",
	"Forked",
	"Closed",
	"MissingView",
};

const char *gdrpy_broker_result_name(int result)
{
	size_t number = -(size_t)result;

	return number < sizeof(names) / sizeof(*names) ? names[number] : "unknown";
}

/* The result of a refusal, by the name of a class of errors that brokers send. */
static int result_of(const struct broker_reader *name)
{
	size_t nbytes = (size_t)(name->end - name->next);

	for (int i = 1; i <= -GDRPY_BROKER_PROTOCOL_ERROR; i++)
		if (strlen(names[i]) == nbytes && !memcmp(names[i], name->next, nbytes))
			return -i;
	return GDRPY_BROKER_PROTOCOL_ERROR;
}

int broker_malformed(struct gdrpy_broker *broker, const char *call, const char *field)
{
	broker_break_off(broker);
	return broker_fail(GDRPY_BROKER_PROTOCOL_ERROR,
			   "%s: the broker's reply has a malformed or missing %s", call, field);
}

static int refused(struct gdrpy_broker *broker, const struct header *header)
{
	size_t nbytes = (size_t)(header->message.end - header->message.next);

	if (!header->id) /* the connection is refused */
		broker_break_off(broker);
	return broker_fail(result_of(&header->error), "%.*s", (int)nbytes, header->message.next);
}

/* Decode a reply, which must belong to the last request. */
static int accept_reply(struct gdrpy_broker *broker, const struct broker_request *request,
			const struct broker_packet *packet, const struct broker_field *fields,
			void *reply, bool grants)
{
	struct broker_reader bytes = packet->bytes;
	struct header header = {0};
	const char *wrong = broker_decode(&bytes, header_fields, &header);
	bool is_refusal = header.error.next;

	if (!wrong && bytes.next != bytes.end)
		wrong = "end";
	if (!wrong && is_refusal && !header.message.next)
		wrong = "message";
	if (!wrong && header.id != broker->last_id && (header.id || !is_refusal))
		wrong = "id";
	if (!wrong && is_refusal)
		return refused(broker, &header);
	if (!wrong && (header.fds != grants || (packet->fd >= 0 || packet->cut) != grants))
		wrong = "descriptor";
	bytes = packet->bytes;
	if (!wrong && fields)
		wrong = broker_decode(&bytes, fields, reply);
	return wrong ? broker_malformed(broker, request->call, wrong) : 0;
}

static int exchange(struct gdrpy_broker *broker, struct broker_request *request,
		    const struct broker_field *fields, void *reply, int *fd)
{
	struct broker_packet packet;
	int result;

	set_id(request, ++broker->last_id);
	result = send_packet(broker, &request->writer);
	if (!result)
		result = broker_receive(broker, &packet);
	cut_off(broker, result);
	if (result)
		return result;
	result = accept_reply(broker, request, &packet, fields, reply, fd);
	if (result || packet.cut || !fd)
		close_descriptor(&packet);
	if (!result && fd)
		*fd = packet.fd;
	return result;
}

/* Hello and resume */

#define NO_SESSION UINT64_MAX

struct welcome {
	uint64_t version, session;
	char life[33];
};

static const struct broker_field welcome_fields[] = {
	BROKER_FIELD(struct welcome, version, "version", BROKER_TO_NUMBER, false),
	BROKER_FIELD(struct welcome, session, "session", BROKER_TO_NUMBER, true),
	BROKER_FIELD(struct welcome, life, "life", BROKER_TO_TEXT, true),
	{0},
};

static int hello(struct gdrpy_broker *broker, struct welcome *welcome)
{
	struct broker_request request;
	int result;

	broker_request_begin(&request, "hello");
	broker_write_key(&request.writer, "version");
	broker_write_number(&request.writer, PROTOCOL_VERSION);
	broker_write_key(&request.writer, "client");
	broker_write_text(&request.writer, "libgdrpy-broker");
	result = exchange(broker, &request, welcome_fields, welcome, NULL);
	if (result)
		return result;
	if (welcome->version != PROTOCOL_VERSION)
		return broker_fail(GDRPY_BROKER_PROTOCOL_ERROR,
				   "the broker at %s speaks version %llu of the protocol, and this "
				   "library version %d: install the same gdrpy on both sides",
				   broker->path, (unsigned long long)welcome->version,
				   PROTOCOL_VERSION);
	if (strlen(welcome->life) + 1 != sizeof(welcome->life))
		return broker_malformed(broker, "hello", "life");
	if (welcome->session == NO_SESSION)
		return broker_malformed(broker, "hello", "session");
	return 0;
}

struct resumed {
	struct broker_value lost;
};

static const struct broker_field resumed_fields[] = {
	BROKER_FIELD(struct resumed, lost, "lost", BROKER_TO_LIST, false),
	{0},
};

static struct broker_lease *next_missing(struct broker_lease *lease)
{
	while (lease && lease->state != BROKER_MISSING)
		lease = lease->next;
	return lease;
}

/* Write the next leases that are missing, up to the limit; return the first one beyond. */
static struct broker_lease *write_leases(struct broker_writer *writer, struct broker_lease *first)
{
	struct broker_lease *lease;
	size_t count = 0;

	for (lease = first; lease && count < BATCH_LIMIT; lease = next_missing(lease->next))
		count++;
	broker_write_key(writer, "leases");
	broker_write_list(writer, count);
	for (lease = first; count; count--, lease = next_missing(lease)) {
		broker_write_list(writer, 3);
		broker_write_number(writer, (int64_t)lease->region.number);
		broker_write_flag(writer, lease->writable);
		broker_write_flag(writer, lease->gpu);
		lease->state = BROKER_ASKED;
	}
	return lease;
}

/* Mark leases from `first` to `end` as held if they were asked for and are not among the lost. */
static bool mark_leases(struct broker_lease *first, struct broker_lease *end,
			struct broker_value lost)
{
	struct broker_value number;
	struct broker_lease *lease;

	while (lost.number--) {
		if (!broker_read(&lost.span, &number) || number.kind != BROKER_NUMBER)
			return false;
		for (lease = first; lease != end; lease = lease->next)
			if (lease->state == BROKER_ASKED &&
			    lease->region.number == (uint64_t)number.number)
				lease->state = BROKER_MISSING;
	}
	for (lease = first; lease != end; lease = lease->next)
		if (lease->state == BROKER_ASKED)
			lease->state = BROKER_HELD;
	return true;
}

/* Resume the missing leases from a session, which ends. */
static int resume_from(struct gdrpy_broker *broker, uint64_t session)
{
	struct broker_lease *first, *next = next_missing(broker->leases);
	struct broker_request request;
	struct resumed resumed;
	int result;

	do {
		first = next;
		begin_in(&request, "resume", broker->packet, sizeof(broker->packet));
		broker_write_key(&request.writer, "session");
		broker_write_number(&request.writer, (int64_t)session);
		next = write_leases(&request.writer, first);
		broker_write_key(&request.writer, "more");
		broker_write_flag(&request.writer, next);
		result = exchange(broker, &request, resumed_fields, &resumed, NULL);
		if (!result && !mark_leases(first, next, resumed.lost))
			result = broker_malformed(broker, "resume", "lost");
	} while (!result && next);
	return result;
}

/* Change the state of leases that no resume has found, and with `held` of all but the lost ones. */
static void set_states(struct gdrpy_broker *broker, bool held, enum broker_lease_state state)
{
	for (struct broker_lease *lease = broker->leases; lease; lease = lease->next) {
		if (lease->state == BROKER_LOST || (lease->state == BROKER_HELD && !held))
			continue;
		lease->state = state;
		broker->nleases -= state == BROKER_LOST;
	}
}

static void add_session(struct gdrpy_broker *broker, uint64_t number)
{
	if (broker->nsessions == BROKER_SESSIONS_LIMIT)
		forget_session(broker);
	broker->sessions[broker->nsessions++] = (struct broker_session){number, -1};
	broker->greeted = true;
}

/* Resume the leases of this life from the sessions that may hold them, and end these. */
static int resume(struct gdrpy_broker *broker, const struct welcome *welcome)
{
	bool moved = false;
	int result = 0;

	if (strcmp(broker->life, welcome->life)) {
		set_states(broker, true, BROKER_LOST);
		strcpy(broker->life, welcome->life);
		broker->granting = false;
	}
	if (!broker->granting)
		forget_sessions(broker);
	add_session(broker, welcome->session);
	broker->nreturned = 0; /* a resume tells of them by leaving them out */
	set_states(broker, true, BROKER_MISSING);
	while (broker->nsessions > 1) {
		result = resume_from(broker, broker->sessions[0].number);
		if (result == GDRPY_BROKER_INVALID_REQUEST) /* the process changed its user */
			set_states(broker, false, BROKER_MISSING);
		else if (result)
			break;
		moved |= !result;
		forget_session(broker);
	}
	if (broker->nsessions > 1) {
		if (!moved && broker->sock >= 0) { /* refused: the old one still has all */
			broker->nsessions--;
			broker->greeted = false;
		}
		return result;
	}
	set_states(broker, false, BROKER_LOST);
	broker->granting = broker->nleases;
	return 0;
}

int broker_open(struct gdrpy_broker *broker)
{
	struct welcome welcome = {.session = NO_SESSION};
	int result;

	broker_break_off(broker);
	broker->greeted = false;
	broker->uuid_device = -1;
	result = dial(broker);
	if (!result)
		result = hello(broker, &welcome);
	if (!result)
		result = resume(broker, &welcome);
	if (result)
		broker_break_off(broker);
	return result;
}

/* Leases */

bool broker_hold(struct gdrpy_broker *broker, struct broker_lease *lease)
{
	size_t wanted = broker->nreturned + broker->nleases + 1;
	uint64_t *more = broker->returned;

	if (wanted > broker->room) {
		more = realloc(more, 2 * wanted * sizeof(*more));
		if (!more)
			return false;
		broker->returned = more;
		broker->room = 2 * wanted;
	}
	lease->broker = broker;
	lease->state = BROKER_HELD;
	lease->next = broker->leases;
	lease->link = &broker->leases;
	if (lease->next)
		lease->next->link = &lease->next;
	broker->leases = lease;
	broker->nleases++;
	broker->nusers++;
	return true;
}

/* Tell of the regions that were given back, or disconnect. */
static int send_returned(struct gdrpy_broker *broker)
{
	struct broker_writer writer;
	size_t count, first;
	int result;

	while (broker->nreturned && broker->sock >= 0) {
		count = broker->nreturned < BATCH_LIMIT ? broker->nreturned : BATCH_LIMIT;
		first = broker->nreturned - count;
		broker_write_begin(&writer, broker->packet, sizeof(broker->packet));
		broker_write_key(&writer, "op");
		broker_write_text(&writer, "release");
		broker_write_key(&writer, "regions");
		broker_write_list(&writer, count);
		for (size_t i = first; i < broker->nreturned; i++)
			broker_write_number(&writer, (int64_t)broker->returned[i]);
		result = send_packet(broker, &writer);
		cut_off(broker, result);
		if (result)
			return result;
		broker->nreturned = first;
	}
	return 0;
}

void broker_give_back(struct gdrpy_broker *broker, struct broker_lease *lease)
{
	*lease->link = lease->next;
	if (lease->next)
		lease->next->link = lease->link;
	broker->nusers--;
	if (lease->state == BROKER_LOST)
		return;
	broker->nleases--;
	broker->returned[broker->nreturned++] = lease->region.number;
	send_returned(broker);
	for (size_t i = 0; i < broker->nsessions && !broker->nleases; i++)
		close_socket(&broker->sessions[i].sock); /* nothing is left to resume */
}

/* Calls */

static void pause_ms(int64_t milliseconds)
{
	struct timespec left = {milliseconds / 1000, milliseconds % 1000 * 1000000};

	while (nanosleep(&left, &left) && errno == EINTR)
		;
}

static int try_once(struct gdrpy_broker *broker, struct broker_request *request,
		    const struct broker_field *fields, void *reply, int *fd, bool *asked)
{
	int result = broker->sock < 0 ? broker_open(broker) : 0;

	if (!result)
		result = send_returned(broker);
	if (result)
		return result;
	if (request->lease && request->lease->state == BROKER_LOST)
		return broker_fail(
			GDRPY_BROKER_GONE,
			"%s: region %llu was lost when the broker at %s was restarted, "
			"or closed the connection: its memory stays usable here until it "
			"is released",
			request->call, (unsigned long long)request->lease->region.number,
			broker->path);
	*asked = true;
	broker->granting |= fd != NULL;
	return exchange(broker, request, fields, reply, fd);
}

static int unavailable(struct gdrpy_broker *broker, const char *call)
{
	errno = broker->lost_errno;
	return broker_fail(GDRPY_BROKER_UNAVAILABLE,
			   "%s: the broker at %s went away and did not come back within %d ms "
			   "(%m): start it by `gdrpy serve`",
			   call, broker->path, broker->reconnect_ms);
}

int broker_ask(struct gdrpy_broker *broker, struct broker_request *request,
	       const struct broker_field *fields, void *reply, int *fd)
{
	bool perhaps_done = false, asked;
	int64_t deadline = 0, pause = 0, now;
	int result = request->result;

	if (!result && request->writer.full)
		result = broker_fail(
			GDRPY_BROKER_INVALID_REQUEST,
			"%s: the arguments are too long for a request: give metadata of "
			"up to %d bytes",
			request->call, GDRPY_BROKER_METADATA_BYTES);
	while (!result) {
		asked = false;
		result = try_once(broker, request, fields, reply, fd, &asked);
		if (result == BROKER_SILENT)
			return broker_fail(GDRPY_BROKER_TIMEOUT,
					   "%s: the broker at %s did not answer within %d ms: give "
					   "gdrpy_broker_connect() a larger timeout",
					   request->call, broker->path, broker->timeout_ms);
		/* The first copy of a repeated request may have been carried out. */
		if (result == GDRPY_BROKER_NOT_FOUND && perhaps_done &&
		    !strcmp(request->call, "delete"))
			return 0;
		if (!broker_is_cut_off(result))
			break;
		perhaps_done |= asked && result == BROKER_GONE_AWAY;
		now = broker_now_ms();
		if (!deadline)
			deadline = now + broker->reconnect_ms;
		else if (now >= deadline)
			return unavailable(broker, request->call);
		pause_ms(pause < deadline - now ? pause : deadline - now);
		pause = pause ? 2 * pause : FIRST_PAUSE_MS;
		if (pause > LAST_PAUSE_MS)
			pause = LAST_PAUSE_MS;
		result = 0;
	}
	return result;
}

int broker_new(const char *path, int timeout_ms, int reconnect_ms, struct gdrpy_broker **made)
{
	struct gdrpy_broker *broker = calloc(1, sizeof(*broker));

	if (!broker)
		return broker_fail(GDRPY_BROKER_OUT_OF_MEMORY, "connect: %m");
	pthread_mutex_init(&broker->lock, NULL);
	broker->pid = getpid();
	strcpy(broker->path, path);
	broker->timeout_ms = timeout_ms;
	broker->reconnect_ms = reconnect_ms;
	broker->nusers = 1;
	broker->sock = -1;
	broker->last_id = FIRST_ID;
	*made = broker;
	return 0;
}

/*
 * A broker that cannot see this process would wait for its end, so it is told of the leases. A
 * child leaves its copy as it is: another thread may have held the lock.
 */
void broker_close(struct gdrpy_broker *broker)
{
	if (!broker || broker->pid != getpid())
		return;
	pthread_mutex_lock(&broker->lock);
	for (struct broker_lease *lease = broker->leases; lease; lease = lease->next)
		if (lease->state != BROKER_LOST)
			broker->returned[broker->nreturned++] = lease->region.number;
	set_states(broker, true, BROKER_LOST);
	send_returned(broker);
	forget_sessions(broker);
	hang_up(broker);
	broker->closed = true;
	broker->nusers--;
	broker_leave(broker);
}

int broker_enter(struct gdrpy_broker *broker, const char *call)
{
	if (broker && broker->pid != getpid())
		return broker_fail(
			GDRPY_BROKER_FORKED,
			"%s: this is a forked child, and the connection to the broker is "
			"that of process %d: connect to the broker here",
			call, broker->pid);
	if (broker) {
		pthread_mutex_lock(&broker->lock);
		if (!broker->closed)
			return 0;
		pthread_mutex_unlock(&broker->lock);
	}
	return broker_fail(GDRPY_BROKER_CLOSED,
			   "%s: the connection to the broker is closed: connect again", call);
}

void broker_leave(struct gdrpy_broker *broker)
{
	bool unused = !broker->nusers;

	pthread_mutex_unlock(&broker->lock);
	if (!unused)
		return;
	pthread_mutex_destroy(&broker->lock);
	free(broker->returned);
	free(broker);
}
