/* SPDX-License-Identifier: MIT */
/*
 * Last closes of /dev/gdrdrv, in all the ways that they come about. A runner makes one round after
 * the other. In each a new process, the owner, has GPU memory, opens the node, pins, maps and
 * shares; then the target's way decides who closes the node last, and when. The runner has a share
 * of a pin of each owner, the witness: it must live until the last close, and end with it.
 */
#ifndef STRESS_CLOSES_H
#define STRESS_CLOSES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "gdrdrv.h"
#include "random.h"
#include "tally.h"

#define RUNNERS_MAX 3
#define HELPERS_MAX 2
#define CHILDREN 3

/* What an owner has at the most. */
#define NODES 2
#define BLOCKS 2
#define PINS 6 /* of each node */
#define SHARES 6
#define SLOTS 5

#define CPU_PAGE 4096
#define BLOCK_PAGES 4 /* at most, of the GPU's */
#define BLOCK_ROOM (BLOCK_PAGES * GDRDRV_GPU_PAGE_SIZE)

/*
 * Descriptors have fixed numbers, /dev/null's at first, and are replaced in one step. In which
 * order an exit closes nodes, GPU memory and shares, differs from owner to owner.
 */
#define FIXED_FD 100
#define FIXED_FD_ROOM 10
#define FIXED_FD_END (FIXED_FD + 3 * FIXED_FD_ROOM)

enum target {
	TARGET_FORK,
	TARGET_RIGHTS,
	TARGET_URING,
	TARGET_PROC,
	TARGET_KILL,
	TARGET_UNLOAD,
	TARGETS,
};

/* A call on a node, a share, a mapping or GPU memory, or an access to a mapping. */
enum operation {
	OPEN_NODE,
	PIN,
	UNPIN,
	SHARE,
	GET_INFO,
	GET_CB_FLAG,
	SET_TYPE,
	MAP_BY_HANDLE,
	MAP_SHARE,
	TOUCH,
	MOVE,
	UNMAP,
	READ_EVENTS,
	POLL_NODE,
	POLL_SHARE,
	CLOSE_NODE,
	CLOSE_SHARE,
	NEW_MEMORY,
	PLACE_MEMORY,
	FREE_MEMORY,
	CLOSE_MEMORY,
	STRANGER_IOCTL,
	STRANGER_MAP,
	SEND,
	REGISTER,
	UNREGISTER,
	SUBMIT,
	REOPEN,
	TOUCH_WITNESS,
	TOUCH_AFTER,
	MAP_AFTER,
	OPERATIONS,
};

/* What else happens, and is not among the operations that are counted. */
enum event {
	ROUND,
	FORK,
	EXEC,
	KILL,
	OUTLIVED_OWNER, /* the node was still open when its owner had ended */
	LAST_CLOSE,
	COLLECT, /* a socket closed, which runs the collector of sockets in cycles */
	CLOSE_HANDED_ON,
	READ_MODULE,
	READ_OWNER,
	UNLOAD,
	LOAD,
	EVENTS,
};

struct options {
	uint64_t seed;
	uint64_t operations;
	unsigned int seconds;
	const char *module;
	bool json;
};

/* What a runner and the processes of its round share. */
struct round {
	uint64_t seed;
	_Atomic pid_t owner;
	_Atomic pid_t children[CHILDREN];
	_Atomic uint64_t calls;
};

/* What all processes share. */
struct closes {
	struct options options;
	enum target target;
	struct tally operations;
	struct tally events;
	struct round rounds[RUNNERS_MAX];
	atomic_bool stop;
	atomic_bool failed;
};

/* What an owner tells its runner, with its witness and the descriptors of its memory. */
struct news {
	uint64_t addresses[BLOCKS];
	uint32_t views;
	bool has_witness;
	bool has_last; /* a descriptor to be closed after all others */
};

#define FDS_MAX 24 /* in one message */

/* What an owner has, or a child of it. */
struct world {
	struct random random;
	int node_fd, view_fd, share_fd;
	unsigned int nodes, blocks;
	uint32_t block_pages[BLOCKS];
	char *addresses[BLOCKS];
	_Atomic uint64_t pins[NODES][PINS]; /* handle, and pages above it */
	_Atomic uint32_t share_pages[SHARES];
};

extern struct closes *closes;
extern struct round *round_now;
extern struct world world;

/* kinds.c */
extern const struct kind operation_kinds[OPERATIONS];
extern const struct kind event_kinds[EVENTS];
/* Each counts a result, and ends the program if it may not be. */
void record(enum operation operation, int result);
void record_event(enum event event, int result);

/* closes.c */
void __attribute__((noreturn, format(printf, 1, 2))) closes_fail(const char *format, ...);
pid_t fork_or_fail(void);
void linger(struct random *random);

/* world.c */
void world_reserve(void);
/* False: the module is not loaded just now. */
bool world_make(uint64_t seed);
void world_step(struct random *random);
int world_witness(void);
void world_free_some(struct random *random);
void world_close(int fd, enum operation operation);
void world_close_nodes(void);
void world_close_shares(void);
void world_close_views(void);
void world_fill_holes(void);
void world_as_stranger(struct random *random);

/* rounds.c */
void run_round(struct random *random);

/* ways.c */
void __attribute__((noreturn)) owner_main(int stage);

/* helpers.c */
bool uring_is_there(void);
int uring_with_files(struct random *random);
void __attribute__((noreturn)) proc_reader(struct random random);
void load_module(int fd);
void __attribute__((noreturn)) unloader(struct random random);

#endif
