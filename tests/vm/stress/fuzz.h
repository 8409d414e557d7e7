/* SPDX-License-Identifier: MIT */
/*
 * A fuzzer of /dev/gdrdrv. It runs in phases, each a process of its own whose seed is printed. A
 * phase has a few threads, and a stranger: a forked child, that makes the same calls on what it
 * inherited. Structures are made well and then spoilt, or not; so are their addresses and command
 * numbers.
 */
#ifndef STRESS_FUZZ_H
#define STRESS_FUZZ_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gdrdrv.h"
#include "random.h"
#include "tally.h"

#define THREADS_MAX 8
#define NODES 3
#define BLOCKS 2
#define BLOCK_PAGES 2
#define HANDLES 24
#define SHARES 8
#define SLOTS 4 /* for mappings, of each thread */

#define CPU_PAGE ((size_t)sysconf(_SC_PAGESIZE))
#define BLOCK_SIZE (BLOCK_PAGES * GDRDRV_GPU_PAGE_SIZE)

/* Fixed numbers; a new descriptor takes the place of an old one in one step. */
enum {
	NODE_FD = 100,
	VIEW_FD = NODE_FD + NODES,
	SHARE_FD = VIEW_FD + BLOCKS,
	FIXED_FD_END = SHARE_FD + SHARES,
};

enum call {
	CALL_PIN,
	CALL_PIN_V2,
	CALL_PIN_V3,
	CALL_UNPIN,
	CALL_GET_CB_FLAG,
	CALL_GET_INFO,
	CALL_GET_INFO_V2,
	CALL_GET_ATTR,
	CALL_SET_TYPE,
	CALL_GET_VERSION,
	CALL_FEATURES,
	CALL_SHARE,
	COMMANDS, /* up to here: the ioctls */
	CALL_UNKNOWN_COMMAND = COMMANDS,
	CALL_OTHER_TYPE,
	CALL_SHARE_IOCTL,
	CALL_OPEN,
	CALL_MMAP_NODE,
	CALL_MMAP_SHARE,
	CALL_MUNMAP,
	CALL_MREMAP,
	CALL_MPROTECT,
	CALL_TOUCH,
	CALL_READ,
	CALL_POLL,
	CALL_MISUSE,
	CALL_FREE_MEMORY,
	CALL_PLACE_MEMORY,
	CALLS,
};

/*
 * Where structures lie: a page that may be written, one that may only be read, one without access.
 * Through another mapping of the same memory we write and read both at any time.
 */
struct window {
	char *pages;
	char *behind;
};

struct thread {
	struct random random;
	bool stranger;
	struct window window;
	char *slots[SLOTS];
	size_t lengths[SLOTS];
};

/* What all processes of all phases share. */
struct fuzz {
	struct tally own;
	struct tally strangers;
};

/* What the processes of a phase share. */
struct phase {
	uint64_t seed;
	char *blocks[BLOCKS];
	_Atomic uint64_t handles[NODES][HANDLES];
};

extern struct fuzz *fuzz;
extern struct phase *phase;

/* fuzz.c */
extern const struct kind call_kinds[CALLS];
extern const struct kind stranger_kinds[CALLS];
void install_fd(int fd, int at);
/* Counts a result, and ends the fuzzer if it may not be. */
void record(const struct thread *thread, enum call call, int result);

/* structures.c */
#define STRUCTURE_SIZE 64 /* of which none is larger */

struct structure {
	enum call call;
	unsigned int node;
	unsigned int command;
	union {
		char bytes[STRUCTURE_SIZE];
		uint32_t words[STRUCTURE_SIZE / sizeof(uint32_t)];
		struct gdrdrv_pin_buffer pin;
		struct gdrdrv_pin_buffer_v2 pin_v2;
		struct gdrdrv_pin_v3 pin_v3;
		struct gdrdrv_unpin_buffer unpin;
		struct gdrdrv_get_cb_flag cb_flag;
		struct gdrdrv_get_info info;
		struct gdrdrv_get_info_v2 info_v2;
		struct gdrdrv_get_attr attr;
		struct gdrdrv_req_mapping_type type;
		struct gdrdrv_get_version version;
		struct gdrdrv_features features;
		struct gdrdrv_share share;
	};
};

uint64_t some_handle(struct random *random, unsigned int node);
uint64_t some_number(struct random *random);
void structure_make(struct structure *structure, struct random *random);
void structure_spoil(struct structure *structure, struct random *random);
/* What a call that succeeded gave: a handle, or a share's descriptor. */
void structure_keep_result(const struct structure *structure, struct random *random);

/* calls.c */
void call_something(struct thread *thread);

#endif
