/* SPDX-License-Identifier: MIT */
/*
 * One connection to a broker: requests one at a time, and recovery when the broker is restarted. It
 * follows gdrpy/broker/client/connection.py.
 */
#ifndef GDRPY_BROKERLIB_CONNECTION_H
#define GDRPY_BROKERLIB_CONNECTION_H

#include "brokerlib/message.h"

/* The exported interface. Everything else in the library is hidden. */
#pragma GCC visibility push(default)
#include "gdrpy/broker.h"
#pragma GCC visibility pop

#include <pthread.h>
#include <sys/types.h>
#include <sys/un.h>

#define BROKER_PACKET_LIMIT 65536
/* Resumes without a reply, after which the oldest session and the leases that only it has go. */
#define BROKER_SESSIONS_LIMIT 16

enum broker_lease_state {
	BROKER_HELD,
	BROKER_MISSING, /* a resume that is under way, or failed, has not found it */
	BROKER_ASKED,	/* among those of the resume that was just sent */
	BROKER_LOST,
};

struct broker_lease {
	struct gdrpy_region region;	   /* first: the caller has its address */
	struct gdrpy_broker *broker;	   /* constant: the lease keeps it */
	struct broker_lease *next, **link; /* in the broker's list; `link` points here */
	enum broker_lease_state state;
	bool writable, gpu;
	unsigned char metadata[];
};

/* A session that may hold leases, and its socket, -1 if that is closed. */
struct broker_session {
	uint64_t number;
	int sock;
};

struct gdrpy_broker {
	pthread_mutex_t lock; /* guards all that is not constant */
	pid_t pid;	      /* constant, as are the next two: the process that connected */
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
	int timeout_ms;
	int reconnect_ms;
	size_t nusers; /* the caller until it closes the broker, and each lease */
	bool closed;
	int sock;	/* -1 unless it is ready for a request */
	int lost_errno; /* why the peer is gone */
	uint64_t last_id;
	char life[33];
	struct broker_lease *leases;
	size_t nleases; /* not lost */
	/* Regions that were given back and that the broker has not been told of. There is room for
	 * the leases too, so that giving back cannot fail. */
	uint64_t *returned;
	size_t nreturned, room;
	/* The sessions that may hold our leases. The last is the socket's if it is `greeted`. There
	 * are several while a resume has no reply. */
	struct broker_session sessions[BROKER_SESSIONS_LIMIT];
	size_t nsessions;
	bool greeted, granting;
	int uuid_device; /* the GPU whose UUID is known, -1 for none */
	char uuid[GDRPY_BROKER_UUID_BYTES];
	unsigned char packet[BROKER_PACKET_LIMIT]; /* the last one that came */
};

/* A packet that came, with the descriptor beside it. */
struct broker_packet {
	struct broker_reader bytes; /* in the broker's `packet` */
	int fd;			    /* -1 if none came */
	bool cut;		    /* whether a descriptor did not arrive */
};

/* A request, which is written once and may be sent several times. */
struct broker_request {
	const char *call;	    /* its `op` */
	int result;		    /* of checks of its arguments */
	struct broker_lease *lease; /* that it is about, or NULL */
	size_t id_at;
	struct broker_writer writer;
	unsigned char bytes[6144]; /* metadata, a name, and the rest */
};

/* Note the text of gdrpy_broker_error() and return the result. */
int broker_fail(int result, const char *format, ...) __attribute__((format(printf, 2, 3)));

int64_t broker_now_ms(void); /* CLOCK_MONOTONIC */

/* An argument as an error shows it: the first 80 bytes of what is text. */
const char *broker_quote(char quoted[96], const char *argument);

void broker_request_begin(struct broker_request *request, const char *call);
/* A name or a prefix, of `least` bytes or more. */
void broker_request_name(struct broker_request *request, const char *key, const char *name,
			 size_t least);

/* The path of a broker: the one that is given, or for NULL where Python's clients look. */
int broker_find_path(const char *given, char *path, size_t room);

int broker_new(const char *path, int timeout_ms, int reconnect_ms, struct gdrpy_broker **broker);
void broker_close(struct gdrpy_broker *broker);

/* Lock the connection for a call, unless it is closed or the parent process's. */
int broker_enter(struct gdrpy_broker *broker, const char *call);
/* Unlock it, and free it after its last user. */
void broker_leave(struct gdrpy_broker *broker);

/* The caller of the functions below holds the lock. */

/* Connect, once: a result, or BROKER_GONE_AWAY, BROKER_UNREAD, BROKER_SILENT. */
int broker_open(struct gdrpy_broker *broker);

enum {
	BROKER_GONE_AWAY = -100, /* the peer is gone, or never answered */
	BROKER_UNREAD = -101,	 /* the peer is gone and has not read the last packet */
	BROKER_SILENT = -102,	 /* the peer did not answer in time */
};

static inline bool broker_is_cut_off(int result)
{
	return result <= BROKER_GONE_AWAY;
}

/*
 * Send a request, and read its reply by a table; connect again and repeat it as needed. `fd` gets
 * the descriptor of a grant, -1 if it did not arrive, and is NULL for other requests.
 */
int broker_ask(struct gdrpy_broker *broker, struct broker_request *request,
	       const struct broker_field *fields, void *reply, int *fd);

/* One packet, whose descriptor is private. If this fails, none is open. */
int broker_receive(struct gdrpy_broker *broker, struct broker_packet *packet);

/* Disconnect; the broker notices only after the leases were resumed. */
void broker_break_off(struct gdrpy_broker *broker);

/* Disconnect for a reply with a malformed field. */
int broker_malformed(struct gdrpy_broker *broker, const char *call, const char *field);

/* Take a lease over, which the broker granted. False without memory. */
bool broker_hold(struct gdrpy_broker *broker, struct broker_lease *lease);

/* Give a lease back, which may have to wait until the socket has room. */
void broker_give_back(struct gdrpy_broker *broker, struct broker_lease *lease);

#endif
