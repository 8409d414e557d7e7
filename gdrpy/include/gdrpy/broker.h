/* SPDX-License-Identifier: MIT */
/*
 * libgdrpy-broker: named regions of GPU and host memory, shared between processes by a running
 * `gdrpy serve`. docs/broker-library.md is the guide.
 *
 * Each function returns 0 or a negative number of enum gdrpy_broker_result, unless it says
 * otherwise. gdrpy_broker_error() then has the text for people. A call that fails leaves its
 * outputs as they were.
 *
 * Threads may share a broker, whose calls run one at a time. A region or a watch belongs to one
 * thread at a time; its thread need not be the one that closes the broker. In a forked child, calls
 * to the parent's broker are refused by GDRPY_BROKER_FORKED. The child may map and release the
 * regions, and make its own connection.
 */
#ifndef GDRPY_BROKER_H
#define GDRPY_BROKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GDRPY_BROKER_VERSION_MAJOR 1
#define GDRPY_BROKER_VERSION_MINOR 0

/* Results. gdrpy_broker_result_name() gives the names of Python's classes of errors. */
enum gdrpy_broker_result {
	GDRPY_BROKER_OK = 0,
	GDRPY_BROKER_NOT_FOUND = -1,	     /* no such name, or no such device */
	GDRPY_BROKER_GONE = -2,		     /* the broker no longer has the region: it was lost */
	GDRPY_BROKER_PERMISSION_DENIED = -3, /* of a region, or of the broker's socket */
	GDRPY_BROKER_SIZE_MISMATCH = -4,     /* the name has another size or device */
	GDRPY_BROKER_SEALED = -5,	     /* the region is immutable */
	GDRPY_BROKER_QUOTA_EXCEEDED = -6,    /* a limit of the broker is reached */
	GDRPY_BROKER_TOO_LARGE = -7,	     /* larger than a limit: asking again is in vain */
	GDRPY_BROKER_OUT_OF_MEMORY = -8,     /* of the device, the broker, or this process */
	GDRPY_BROKER_BACKEND_UNAVAILABLE = -9, /* the broker has no GPU driver */
	GDRPY_BROKER_INVALID_REQUEST = -10,    /* an argument is out of bounds */
	GDRPY_BROKER_PROTOCOL_ERROR = -11,     /* the broker's packet is malformed */
	GDRPY_BROKER_UNAVAILABLE = -12,	       /* no broker answers at the path */
	GDRPY_BROKER_TIMEOUT = -13,	       /* the broker, or an event, did not come in time */
	GDRPY_BROKER_FORKED = -14,	       /* the connection is the parent process's */
	GDRPY_BROKER_CLOSED = -15,	       /* the region's broker was closed */
	GDRPY_BROKER_MISSING_VIEW = -16,       /* mmap cannot map the region's memory */
};

enum {
	GDRPY_BROKER_READONLY = 1, /* get: a lease that only reads */
	GDRPY_BROKER_GPU = 2,	   /* this process will import the memory into CUDA */
};

#define GDRPY_BROKER_NAME_BYTES 256 /* of a name, with its final zero */
#define GDRPY_BROKER_UUID_BYTES 64
#define GDRPY_BROKER_METADATA_BYTES 4096

struct gdrpy_broker; /* a connection */
struct gdrpy_watch;

/*
 * A lease on a region: this process holds its memory until gdrpy_region_release(). The library
 * makes it, and a later one may add members at its end.
 */
struct gdrpy_region {
	uint64_t number;  /* as the broker counts regions */
	uint64_t nbytes;  /* as requested */
	uint64_t size;	  /* of the memory: nbytes rounded up */
	uint64_t version; /* of the name; 0 for a draft, and without a name */
	const void *metadata;
	size_t metadata_nbytes;
	int fd;	       /* the memory, closed on exec. gdrpy_region_release() closes it */
	int device;    /* the broker's CUDA ordinal; -1 is host memory */
	bool sealed;   /* immutable */
	bool readonly; /* this lease may only read, and so may mappings of it */
	bool enforced; /* the kernel prevents writing by this descriptor */
	/* By this call of gdrpy_broker_allocate() or gdrpy_broker_create(). If the call reconnected
	 * and was repeated, false may stand for a region that its first request made. */
	bool created;
	char name[GDRPY_BROKER_NAME_BYTES]; /* "" for none */
	char uuid[GDRPY_BROKER_UUID_BYTES]; /* the GPU's, "" for host memory */
};

/* A new region. Clear it first, as by = {0}: a later library may use what is `reserved`. */
struct gdrpy_new_region {
	const char *name; /* NULL: without a name, for gdrpy_broker_allocate() alone */
	uint64_t nbytes;
	/* A GPU's UUID ("GPU-..."), PCI address ("0000:3b:00.0") or broker's ordinal ("0"); "cpu".
	 */
	const char *device;
	unsigned int mode;    /* permission bits as of a file, such as 0600 */
	const void *metadata; /* up to 4096 bytes; gdrpy in Python writes and reads a msgpack map */
	size_t metadata_nbytes;
	uint64_t reserved[8];
};

/* A region as the broker describes it. */
struct gdrpy_entry {
	uint64_t number, nbytes, size, version;
	uint64_t readers, writers; /* processes that hold it */
	uint64_t asleep;	   /* processes that keep their addresses of it */
	uint32_t mode, uid, gid;
	int device;
	bool sealed;
	bool linked; /* the name refers to it */
	char name[GDRPY_BROKER_NAME_BYTES];
	char uuid[GDRPY_BROKER_UUID_BYTES];
	size_t metadata_nbytes; /* 0 in a list */
	unsigned char metadata[GDRPY_BROKER_METADATA_BYTES];
	uint64_t reserved[8];
};

enum gdrpy_event_kind {
	GDRPY_EVENT_OTHER,     /* of a newer broker */
	GDRPY_EVENT_ALLOCATED, /* a region was made under a name */
	GDRPY_EVENT_PUBLISHED, /* a draft got its name */
	GDRPY_EVENT_SEALED,
	GDRPY_EVENT_DELETED,
	GDRPY_EVENT_ENDED, /* a region lost its exporter: release it within its grace time */
	GDRPY_EVENT_FREED, /* memory was freed; names no region */
	GDRPY_EVENT_LOST,  /* events are missing: read too late, or the broker was restarted */
};

struct gdrpy_event {
	enum gdrpy_event_kind kind;
	uint64_t number, version; /* of the region; 0 if the event is about none */
	char name[GDRPY_BROKER_NAME_BYTES];
	uint64_t reserved[4];
};

/* The version of the library that runs, beside that of this header. */
void gdrpy_broker_version(int *major, int *minor);

/* The text of this thread's last call that failed, which names the remedy: UTF-8, never NULL. */
const char *gdrpy_broker_error(void);

/* "NotFound" for GDRPY_BROKER_NOT_FOUND, and so on. */
const char *gdrpy_broker_result_name(int result);

/*
 * Connect to the broker at `path`. NULL is $GDRPY_SOCKET, else this user's broker, else
 * /run/gdrpy/broker.sock. A reply may take `timeout_ms`. When the broker is restarted, a call looks
 * for it for up to `reconnect_ms`, resumes the leases, and repeats the request.
 */
int gdrpy_broker_connect(const char *path, int timeout_ms, int reconnect_ms,
			 struct gdrpy_broker **broker);

/*
 * Disconnect. This ends every lease; the descriptors stay until the regions are released, which
 * other threads may do at the same time. None of them may be in a call on the broker itself.
 */
void gdrpy_broker_close(struct gdrpy_broker *broker);

/*
 * The region of this name, made if it does not exist. `flags` is GDRPY_BROKER_GPU or 0. One that
 * exists may be sealed, or another user's: see region->readonly before writing.
 */
int gdrpy_broker_allocate(struct gdrpy_broker *broker, const struct gdrpy_new_region *wanted,
			  unsigned int flags, struct gdrpy_region **region);

/* A draft: a new region that other processes find from gdrpy_region_publish() on. */
int gdrpy_broker_create(struct gdrpy_broker *broker, const struct gdrpy_new_region *wanted,
			unsigned int flags, struct gdrpy_region **region);

/*
 * The region of this name, by GDRPY_BROKER_READONLY and GDRPY_BROKER_GPU, or 0. The lease is
 * read-only too if the region is sealed, or if this user may not write it.
 */
int gdrpy_broker_get(struct gdrpy_broker *broker, const char *name, unsigned int flags,
		     struct gdrpy_region **region);

/* Delete the name. The memory stays until its last holder releases it. */
int gdrpy_broker_delete(struct gdrpy_broker *broker, const char *name);

int gdrpy_broker_stat(struct gdrpy_broker *broker, const char *name, struct gdrpy_entry *entry);

/*
 * Tell `tell` of each region whose name begins with `prefix`, in order, until it returns nonzero.
 * `tell` may call the library.
 */
int gdrpy_broker_list(struct gdrpy_broker *broker, const char *prefix,
		      int (*tell)(const struct gdrpy_entry *entry, void *context), void *context);

/* Give a draft its name; the region that had it lives on until its last holder releases it. */
int gdrpy_region_publish(struct gdrpy_region *region);

/* Make the region immutable: from now on the broker grants it read-only. */
int gdrpy_region_seal(struct gdrpy_region *region);

/*
 * GDRPY_BROKER_GONE if the broker lost this lease, as it may when it is restarted: the memory stays
 * usable, but the name may refer to another region. Sends nothing: the last call that reconnected
 * found out.
 */
int gdrpy_region_check(const struct gdrpy_region *region);

/*
 * Map region->size bytes, shared, and for reading only if the lease is. GDRPY_BROKER_MISSING_VIEW
 * for the memory of a real GPU, whose descriptor CUDA imports: see docs/broker-library.md. A
 * mapping outlives the release of its region; munmap() then ends it.
 */
int gdrpy_region_map(const struct gdrpy_region *region, void **address);
int gdrpy_region_unmap(const struct gdrpy_region *region, void *address);

/*
 * Give the lease back, close the descriptor and free the structure. NULL is ignored. It waits for
 * the connection's call under way, and up to its `timeout_ms` for a broker that is busy. If that
 * is too short, the next call gives the lease back.
 */
void gdrpy_region_release(struct gdrpy_region *region);

/* Watch names that begin with `prefix`, on a separate connection. */
int gdrpy_watch_open(struct gdrpy_broker *broker, const char *prefix, struct gdrpy_watch **watch);

/*
 * A descriptor that is readable when an event has come. It changes with an event "lost", and is -1
 * after an error, until the next call of gdrpy_watch_next(), and in a forked child.
 */
int gdrpy_watch_fd(const struct gdrpy_watch *watch);

/*
 * The next event. GDRPY_BROKER_TIMEOUT if none comes within `timeout_ms`; -1 waits without limit.
 * If the broker went away, this looks for it for as long, up to the connection's `reconnect_ms`:
 * GDRPY_BROKER_UNAVAILABLE if there is none, or if one does not answer within the connection's
 * `timeout_ms`. The next call looks again.
 */
int gdrpy_watch_next(struct gdrpy_watch *watch, int timeout_ms, struct gdrpy_event *event);

void gdrpy_watch_close(struct gdrpy_watch *watch);

#ifdef __cplusplus
}
#endif

#endif
