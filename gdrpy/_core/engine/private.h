/* SPDX-License-Identifier: MIT */
/* Shared by the files of this folder. */
#ifndef GDRPY_ENGINE_PRIVATE_H
#define GDRPY_ENGINE_PRIVATE_H

#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>

#include "copy/parallel.h"
#include "engine/engine.h"
#include "rm/engine_abi.h"
#include "rm/private.h"

/* Entries of a channel's ring, each with its own part of the pushbuffer. */
#define CORE_RING_ENTRIES 128
#define CORE_PUSH_NBYTES 1024
#define CORE_ENTRY_PIECES 22 /* of the most words, which fit that */

/* Threads that may stage at once; each has a lane of two chunks, together a huge page. */
#define CORE_STAGING_LANES (CORE_THREADS_MAX + 2)
#define CORE_LANE_CHUNKS 2
#define CORE_CHUNK_NBYTES ((size_t)1 << 20)

/* Pages of GPU memory; and a multiple of every kernel's pages. */
#define CORE_PAGE ((size_t)4096)
#define CORE_ANY_PAGE ((size_t)65536)

static inline size_t core_page_nbytes(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

/* Memory in the channels' address space. */
struct core_span {
	uint32_t object;
	uint64_t va;
	char *host; /* for the CPU */
};

/* Copies that must not wait behind large ones have a channel to themselves. */
enum core_channel_use {
	CORE_CHANNEL_SMALL,
	CORE_CHANNEL_BULK,
	CORE_CHANNELS,
};

struct core_channel {
	pthread_mutex_t lock; /* from the choice of a ring entry to the doorbell */
	struct core_link *link;
	uint32_t group, handle; /* the group is 0 without one */
	uint32_t token;
	struct core_rm_mapping map; /* of the GPU memory with ring, USERD and pushbuffer */
	struct core_span control;
	struct core_span semaphore_page, notifier_page; /* of host memory */
	const volatile uint32_t *semaphore;		/* the value of the last submission done */
	const volatile struct nvrm_notification *notifier;
	uint32_t put;			    /* the next ring entry */
	uint32_t last;			    /* the value of the last submission */
	uint32_t values[CORE_RING_ENTRIES]; /* of the last submission by each entry */
};

/*
 * A descriptor to sleep on until the engine interrupts. One thread at a time uses it, because a
 * poll takes the interrupt away.
 */
struct core_event {
	struct core_event *next;
	int fd;
};

/* A client with its address space, channels and doorbell, which are lost and made anew together. */
struct core_link {
	unsigned int users;
	struct core_rm *client;
	const struct core_rm_device *device;
	uint32_t subdevice;
	uint32_t address_space;
	uint32_t virtual_memory;
	uint32_t channel_class, copy_class;
	uint32_t engine;	  /* its type */
	uint32_t index;		  /* COPY<index> */
	bool old_map, old_unmap;  /* the driver takes the older structures */
	bool lost;		  /* a channel died, or does not answer */
	struct core_error loss;	  /* why, once it is */
	struct core_span scratch; /* host memory for the self-check */
	struct core_rm_mapping doorbell_map;
	volatile uint32_t *doorbell;
	struct core_channel channels[CORE_CHANNELS];
	pthread_mutex_t lock;	   /* to make a channel, to lose the link, and for `events` */
	struct core_event *events; /* that no thread uses */
	bool deaf;		   /* the driver refuses events, or no interrupt comes */
	struct core_channel *ready[CORE_CHANNELS];
	unsigned int spared; /* copies that did without the second one */
};

struct core_part_of_gpu {
	struct core_rm_memory block; /* in the link's client */
	uint64_t va;		     /* of the block */
	uint64_t offset;
	uint64_t nbytes;
};

struct core_engine_memory {
	struct core_engine *engine;
	struct core_engine_memory *next;
	uint64_t nbytes;
	uint64_t address, buffer_id; /* from core_engine_set_place() */
	unsigned int count;
	struct core_part_of_gpu parts[];
};

/* A thread's staging memory: chunks of host memory that the engine reaches. */
struct core_staging_lane {
	struct core_span memory;
	bool taken;
};

struct core_engine {
	struct core_engine *next;
	struct core_rm_gpu gpu;
	unsigned int forks;    /* its process, by the number of forks up to it */
	pthread_rwlock_t lock; /* read: to use the link; write: to replace it */
	struct core_link *link;
	bool rebuilt; /* once */
	bool refused; /* for good, because of `refusal` */
	struct core_error refusal;
	pthread_mutex_t list; /* guards `memories` */
	struct core_engine_memory *memories;
	pthread_mutex_t lanes_lock; /* guards `lanes` */
	pthread_cond_t lane_freed;
	struct core_staging_lane lanes[CORE_STAGING_LANES];
};

/* Unless noted, functions return 0, or -1 or NULL with *error filled in and nothing left behind. */

/* --- space.c: objects in the client, and memory in its address space --- */

/* Allocate an object. The parameters are at least as large as any driver's, and are overwritten. */
int core_link_alloc(struct core_link *link, const char *call, uint32_t parent, uint32_t class_id,
		    void *params, uint32_t *handle, struct core_error *error);
int core_link_map(struct core_link *link, uint32_t object, uint64_t nbytes, uint32_t flags,
		  uint64_t *va, struct core_error *error);
int core_link_unmap(struct core_link *link, uint32_t object, uint64_t va, struct core_error *error);

/*
 * Let the engine reach whole pages of host memory, which must stay until the link is closed. If
 * this fails, *span stays as it is.
 */
int core_link_register(struct core_link *link, char *host, uint64_t nbytes, bool readonly,
		       struct core_span *span, struct core_error *error);

/* Undo this; the host memory stays. */
void core_link_unregister(struct core_link *link, const struct core_span *span);

/*
 * Host memory that forked children do not inherit; munmap() frees it. It is huge pages as far as
 * there are any and `nbytes` is a multiple of them.
 */
char *core_link_host(size_t nbytes, struct core_error *error);

/* --- link.c --- */

struct core_link *core_link_open(const struct core_rm_gpu *gpu, struct core_error *error);

/* Keep a link for another user. It is freed when each has closed it. */
void core_link_keep(struct core_link *link);
void core_link_close(struct core_link *link);

/* Close a link that no copy uses; its own channels end now, even if others keep it. */
void core_link_end(struct core_link *link);

/* Whether the driver refuses a call, and would again: for another reason than a lack of memory. */
static inline bool core_is_refusal(const struct core_error *error)
{
	return error->status && error->failure != CORE_FAILED_MEMORY;
}

/* --- channel.c --- */

/*
 * The channel for a use, made if necessary. If a second channel cannot be made, the first one is
 * used: permanently if the driver refuses it, and for this copy only if memory ran out.
 */
struct core_channel *core_link_channel(struct core_link *link, enum core_channel_use use,
				       struct core_error *error);

/* Make a channel, in a zeroed structure. If it is `polite`, its time slices are short. */
int core_channel_open(struct core_link *link, struct core_channel *channel, bool polite,
		      struct core_error *error);
/* Free it, with its unfinished work; the driver no longer uses any memory for it then. */
void core_channel_close(struct core_channel *channel);

/* --- push.c --- */

enum core_piece_kind {
	CORE_PIECE_COPY,
	CORE_PIECE_LINES,
	CORE_PIECE_FILL,
	CORE_PIECE_WAIT, /* for the word at `to` to be at least `value` */
	CORE_PIECE_SET,	 /* the word at `to`, when all pieces before are done */
};

/* A part of a submission: bytes up to CORE_COPY_MOST. */
struct core_engine_piece {
	enum core_piece_kind kind;
	uint64_t to, from;
	uint32_t nbytes; /* of a line */
	uint32_t lines, to_pitch, from_pitch;
	uint32_t value;	 /* to fill with */
	bool words;	 /* `nbytes` counts words, not bytes, to fill */
	bool in_order;	 /* begins when the pieces before it are done */
	bool interrupts; /* after the submission, the last piece of which it is */
};

/* The ring entries that pieces take. */
unsigned int core_channel_entries(unsigned int pieces);

/* Have the engine do pieces, in any order unless they say so. *value is for core_channel_wait(). */
int core_channel_submit(struct core_channel *channel, const struct core_engine_piece *pieces,
			unsigned int count, uint32_t *value, struct core_error *error);

/* --- event.c --- */

/* An event for this thread, until it gives it back; NULL if it must wait without one. */
struct core_event *core_event_take(struct core_link *link);
void core_event_give_back(struct core_link *link, struct core_event *event);

/* Sleep until an interrupt of the engine, any process's, or so many ms; false if none came. */
bool core_event_sleep(struct core_link *link, const struct core_event *event, int milliseconds);

/* Close the events of a link that no thread uses. */
void core_events_close(struct core_link *link);

/* --- wait.c --- */

/* Wait until a submission is done; an error means that the link is lost. */
int core_channel_wait(struct core_channel *channel, uint32_t value, struct core_error *error);

/* The same for a long one that interrupts: the thread sleeps, if the driver has events. */
int core_channel_sleep(struct core_channel *channel, uint32_t value, struct core_error *error);

/* Whether a link is lost; *error then says why. */
bool core_link_is_lost(const struct core_link *link, struct core_error *error);

/* --- check.c --- */

/* Whether the engine copies scratch memory right, in both directions. */
int core_link_check(struct core_link *link, struct core_error *error);

/* --- staging.c --- */

/*
 * Each use may take the lanes from its number on. Lane 0 is reserved for small copies, and lane 1
 * for small copies and rows.
 */
enum core_lane_use {
	CORE_LANE_SMALL,
	CORE_LANE_ROWS,
	CORE_LANE_BULK,
};

/* A lane that this thread alone uses until it gives it back. */
struct core_staging_lane *core_lane_take(struct core_engine *engine, enum core_lane_use use,
					 struct core_error *error);
void core_lane_give_back(struct core_engine *engine, struct core_staging_lane *lane);

/* The channel for a copy of this size, and the bytes that each thread moves at once. */
struct core_channel *core_stage_channel(struct core_engine *engine, size_t nbytes,
					struct core_error *error);
size_t core_stage_chunk(size_t nbytes, unsigned int threads, bool to_gpu);

/* --- copies.c --- */

/* One side of a copy: GPU memory from byte `at` on, or if that is NULL an address. */
struct core_side {
	const struct core_engine_memory *memory;
	uint64_t at;
};

/* The address of a byte of a side; *left becomes the bytes from there on, if they are fewer. */
uint64_t core_side_address(const struct core_side *side, uint64_t done, uint64_t *left);

/* Make the piece of a copy that follows the first `done` bytes; returns its bytes. */
uint64_t core_cut_copy(const struct core_side *to, const struct core_side *from, uint64_t nbytes,
		       uint64_t done, struct core_engine_piece *piece);

/* Submit a copy of any size. *value is for core_channel_wait(). */
int core_channel_copy(struct core_channel *channel, struct core_side to, struct core_side from,
		      uint64_t nbytes, uint32_t *value, struct core_error *error);

/* --- engine.c --- */

/*
 * Run a job that uses the engine's link, which is not replaced meanwhile. If the link is lost, it
 * is made anew, and the job is run once more.
 */
typedef int (*core_engine_job)(struct core_engine *engine, void *job, struct core_error *error);
int core_engine_run(struct core_engine *engine, core_engine_job run, void *job,
		    struct core_error *error);

/* The engine of a GPU, made if necessary. */
struct core_engine *core_engine_of(const struct core_rm_gpu *gpu, struct core_error *error);

/* Whether this process made it, not a parent. */
bool core_engine_is_own(const struct core_engine *engine);

/* The GPU of an exported allocation. */
int core_engine_find_gpu(int fd, struct core_rm_gpu *gpu, struct core_error *error);

/* The forks up to this process. */
unsigned int core_engine_forks(void);

/* --- registered.c --- */

/*
 * The registration of bytes for copies in this direction, or NULL. They stay pinned, once they are,
 * until it is let go: without the lock of any engine.
 */
struct core_registration *core_registration_hold(const char *host, size_t nbytes, bool to_gpu);

/*
 * The engine's address of a byte of a registration that is held; false if the driver does not pin
 * it, and core_registration_hold() does not return it then, for some seconds or ever.
 */
bool core_registration_reach(struct core_registration *registration, struct core_engine *engine,
			     const char *host, uint64_t *va);

/* At the start, and in a forked child, whose registrations are the parent's. */
void core_registrations_forget(void);

/* --- memory.c --- */

/* Take all memory of an engine into another link. */
int core_engine_move(struct core_engine *engine, struct core_link *link, struct core_error *error);

#endif
