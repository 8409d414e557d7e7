/* SPDX-License-Identifier: MIT */
/*
 * A storm of random operations on the kernel module. A supervisor keeps a number of workers, which
 * it kills now and then; a worker is a process whose threads work on the same descriptors, pins and
 * mappings without waiting for one another, so that every operation meets every other. Each result
 * of each operation must be one that the operation may have.
 *
 * Every byte that is stored in a worker's GPU memory is that worker's mark, or a zero that the
 * kernel stores, through whoever's share it is reached. So a mark of another worker's, or one that
 * stays in memory handed out anew, shows a mapping that reaches what it must not.
 */
#ifndef STRESS_STORM_H
#define STRESS_STORM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "gdrdrv.h"
#include "random.h"
#include "tally.h"

#define WORKERS_MAX 8
#define THREADS_MAX 8

/* What each worker has. */
#define NODES 2
#define BLOCKS 4
#define PINS 16
#define SHARES 6
#define SLOTS 10
/* From each worker. */
#define PEER_SHARES 2
#define PEER_SLOTS 2

#define CPU_PAGE ((size_t)sysconf(_SC_PAGESIZE))
#define BLOCK_PAGES 4 /* at most, of the GPU's */
#define BLOCK_ROOM (BLOCK_PAGES * GDRDRV_GPU_PAGE_SIZE)

/*
 * Descriptors have fixed numbers, and a new one takes the place of the old in one step: so a number
 * that another thread is just using never means something else.
 */
enum {
	NODE_FD = 100,
	VIEW_FD = NODE_FD + NODES,
	SHARE_FD = VIEW_FD + BLOCKS,
	PEER_FD = SHARE_FD + SHARES,
	FIXED_FD_END = PEER_FD + WORKERS_MAX * PEER_SHARES,
	MAILBOX_FD = 200, /* two for each worker: to send, to receive */
};

enum operation {
	OPEN_NODE,
	PIN,
	PIN_V2,
	PIN_V3,
	UNPIN,
	MAP_BY_HANDLE,
	MAP_SHARE,
	MAP_PEER_SHARE,
	TOUCH,
	TOUCH_PEER,
	TOUCH_BY_KERNEL,
	UNMAP,
	UNMAP_PART,
	PROTECT,
	PROTECT_PART,
	MOVE,
	SHRINK,
	GROW,
	ADVISE,
	SHARE,
	SEND_SHARE,
	SEND_NODE,
	RECEIVE,
	FORK,
	NEW_MEMORY,
	FREE_MEMORY,
	CLOSE_MEMORY,
	READ_EVENTS,
	POLL_NODE,
	POLL_SHARE,
	SET_TYPE,
	GET_INFO,
	GET_CB_FLAG,
	READ_PROC,
	UNLOAD,
	CHOSEN, /* those up to here are chosen at random, the others come with them */
	STRANGER_IOCTL = CHOSEN,
	STRANGER_MAP,
	STRANGER_READ,
	CHILD_TOUCH,
	CHILD_MAP_SHARE,
	CHILD_TOUCH_SHARE,
	KILL_CHILD,
	KILL_WORKER,
	LOST_WORKER,
	OPERATIONS,
};

struct options {
	uint64_t seed;
	uint64_t operations;
	unsigned int seconds;
	unsigned int workers;
	unsigned int threads;
	uint64_t kill_every;
	bool faults;
	bool json;
};

/* What all processes share. */
struct storm {
	struct options options;
	struct tally tally;
	atomic_bool stop;
	atomic_bool failed;
	_Atomic int doing[WORKERS_MAX][THREADS_MAX]; /* an operation; -1: none */
};

/* A place for one mapping. Whose memory it shows never changes, or a mark would prove nothing. */
struct slot {
	char *address;
	_Atomic uint32_t length; /* last mapped there */
	unsigned int owner;
};

/* The GPU memory that a view's descriptor stands for. */
struct block {
	pthread_mutex_t lock; /* makes and frees it; others only look at the size */
	_Atomic uint32_t size;
	bool placed;
	char *address; /* nothing is there but the stand-in's word */
	char *window;  /* to look at it before it is freed */
};

struct worker {
	unsigned int index;
	struct block blocks[BLOCKS];
	_Atomic uint64_t pins[PINS]; /* see struct pin_name */
	struct slot slots[SLOTS];
	struct slot peer_slots[WORKERS_MAX][PEER_SLOTS];
};

struct thread {
	unsigned int number;
	struct random random;
	int fail_nth; /* descriptors, with --faults */
	int make_it_fail;
	unsigned long done;
};

/* A handle, or what another thread may have left of one. */
struct pin_name {
	uint32_t handle;
	uint8_t node;
	uint8_t pages;
};

extern struct storm *storm;
extern struct worker worker;

/* storm.c */
/* Counts a result, and ends the storm if it may not be. */
void record(struct thread *thread, enum operation operation, int result);
/* Counts a process that a signal ended, of its waitpid() status; only SIGKILL is as it should be.
 */
void record_death(struct thread *thread, int status);
void __attribute__((noreturn, format(printf, 2, 3))) storm_fail(const struct thread *thread,
								const char *format, ...);

/* operations.c */
extern const struct kind operation_kinds[OPERATIONS];
#define SKIPPED (-1) /* nothing was done */
int operation_run(enum operation operation, struct thread *thread);
enum operation operation_choose(struct random *random);

/* worker.c */
void __attribute__((noreturn)) worker_main(unsigned int index, unsigned int incarnation);
void install_fd(int fd, int at);
void install_nothing(int at); /* /dev/null */
uint32_t mark_of(unsigned int owner);
bool may_hold(unsigned int owner, uint32_t found); /* in the owner's memory */

/* memory.c */
struct pin_name some_pin(struct thread *thread);
int op_pin(struct thread *thread);
int op_pin_v2(struct thread *thread);
int op_pin_v3(struct thread *thread);
int op_unpin(struct thread *thread);
int op_new_memory(struct thread *thread);
int op_free_memory(struct thread *thread);
int op_close_memory(struct thread *thread);

/* mappings.c */
struct slot *some_slot(struct thread *thread);
int touch(struct thread *thread, const struct slot *slot);
int map_share(struct thread *thread, struct slot *slot, int fd);
int op_map_by_handle(struct thread *thread);
int op_map_share(struct thread *thread);
int op_map_peer_share(struct thread *thread);
int op_touch(struct thread *thread);
int op_touch_peer(struct thread *thread);
int op_touch_by_kernel(struct thread *thread);
int op_unmap(struct thread *thread);
int op_unmap_part(struct thread *thread);
int op_protect(struct thread *thread);
int op_protect_part(struct thread *thread);
int op_move(struct thread *thread);
int op_shrink(struct thread *thread);
int op_grow(struct thread *thread);
int op_advise(struct thread *thread);

/* sharing.c */
int op_open_node(struct thread *thread);
int op_share(struct thread *thread);
int op_send_share(struct thread *thread);
int op_send_node(struct thread *thread);
int op_receive(struct thread *thread);
int op_fork(struct thread *thread);

/* queries.c */
int op_read_events(struct thread *thread);
int op_poll_node(struct thread *thread);
int op_poll_share(struct thread *thread);
int op_set_type(struct thread *thread);
int op_get_info(struct thread *thread);
int op_get_cb_flag(struct thread *thread);
int op_read_proc(struct thread *thread);
int op_unload(struct thread *thread);

#endif
