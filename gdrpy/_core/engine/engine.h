/* SPDX-License-Identifier: MIT */
/*
 * Copies by a GPU's copy engine without CUDA, complete on return.
 *
 * An engine is a channel of the copy engine in a client of NVIDIA's resource manager. A process has
 * one for each GPU, made on first use and given back by the kernel when the process ends. It is
 * used only after copies of scratch memory came out right.
 *
 * If the channel is lost, the engine is made anew, once, and the copy is repeated. Any thread may
 * call these functions at any time. A forked child may not use its parent's memory or engine.
 */
#ifndef GDRPY_ENGINE_H
#define GDRPY_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"
#include "copy/pieces.h"
#include "copy/rows.h"
#include "rm/client.h"

/* GPU memory that an engine reaches. It is held until it is released. */
struct core_engine_memory;

/* Unless noted, functions return 0, or -1 or NULL with *error filled in. */

/* Take in an exported allocation. The caller keeps the descriptor. */
struct core_engine_memory *core_engine_take_export(int fd, uint64_t nbytes,
						   struct core_error *error);

/* A range of an object that another client of this process holds. */
struct core_engine_block {
	uint32_t client;
	uint32_t object;
	uint64_t offset;
	uint64_t nbytes;
};

/* Take in ranges of blocks on one GPU, one after the other. */
struct core_engine_memory *core_engine_take_blocks(const struct core_rm_gpu *gpu,
						   const struct core_engine_block *blocks,
						   unsigned int count, struct core_error *error);

/*
 * Say where CUDA shows the memory in this process, and the ID of the allocation there. 0: unknown.
 * Called before the memory is copied first.
 */
void core_engine_set_place(struct core_engine_memory *memory, uint64_t address, uint64_t buffer_id);

/* Whether ranges overlap, as far as the memories' places tell. */
bool core_engine_overlap(const struct core_engine_memory *one, uint64_t offset,
			 const struct core_engine_memory *other, uint64_t other_offset,
			 uint64_t nbytes);

/* No copy of the memory may be running. In a forked child, only the structure is freed. */
void core_engine_release(struct core_engine_memory *memory);

/* The engine takes 0.14 us to begin each piece of many, in which the bus moves so many bytes. */
#define CORE_PIECE_COST ((size_t)8 << 10)

/*
 * Copy host memory, pieces of it in any order, or an array's rows, to or from the memory: to a
 * range, to a range for each piece, or to rows a pitch apart, the first at `offset`. Large copies
 * take several threads. Pieces need no staging if one registration has them all.
 */
int core_engine_transfer(struct core_engine_memory *memory, uint64_t offset, char *host,
			 size_t nbytes, bool to_gpu, struct core_error *error);
int core_engine_transfer_many(struct core_engine_memory *memory, const struct core_piece *pieces,
			      size_t count, bool to_gpu, struct core_error *error);
int core_engine_transfer_rows(struct core_engine_memory *memory, uint64_t offset,
			      const struct core_rows *rows, bool to_gpu, struct core_error *error);

/* Set each byte of a range. */
int core_engine_fill(struct core_engine_memory *memory, uint64_t offset, uint8_t value,
		     uint64_t nbytes, struct core_error *error);

/* Copy between ranges that do not overlap, on one GPU: else CORE_FAILED_HANDLE. */
int core_engine_copy(struct core_engine_memory *to, uint64_t to_offset,
		     struct core_engine_memory *from, uint64_t from_offset, uint64_t nbytes,
		     struct core_error *error);

/*
 * Have copies of these bytes of host memory go without staging. The memory must stay until
 * core_engine_unregister(), and to the end of the copies that run then. It is pinned in whole pages
 * when an engine first copies it; memory that the driver does not pin is staged.
 */
struct core_registration;
struct core_registration *core_engine_register(const void *host, size_t nbytes, bool readonly,
					       struct core_error *error);
void core_engine_unregister(struct core_registration *registration);

/* Whether these bytes are registered for copies in this direction, and not known to be staged. */
bool core_engine_has_registered(const char *host, size_t nbytes, bool to_gpu);

/*
 * Steps that a separate channel does in order, without the CPU. They are added one by one, and
 * submitted as jobs. One thread at a time uses a queue, except for core_queue_progress(). The
 * memory that steps of unfinished jobs use must stay until the queue is closed.
 */
struct core_queue;

enum core_queue_step_kind {
	CORE_STEP_WAIT, /* until a word of the memory is at least a value, or past it cyclically */
	CORE_STEP_SET,	/* a word of the memory to a value */
	CORE_STEP_WRITE,
	CORE_STEP_READ,
};

struct core_queue_step {
	enum core_queue_step_kind kind;
	struct core_engine_memory *memory;
	uint64_t offset;
	uint32_t value;
	struct core_engine_memory *other; /* copied from or to, from its first byte on; or NULL: */
	char *host;			  /* registered memory */
	uint64_t nbytes;
};

/* On the GPU of the memory. */
struct core_queue *core_queue_open(struct core_engine_memory *memory, struct core_error *error);

/* Ends unfinished jobs. In a forked child, only the structure is freed. */
void core_queue_close(struct core_queue *queue);

/*
 * Add a step; 1 if the host memory is not registered, or cannot be. Registered memory is pinned
 * until *registration is let go, even if it is unregistered meanwhile.
 */
int core_queue_add(struct core_queue *queue, const struct core_queue_step *step,
		   struct core_registration **registration, struct core_error *error);
void core_registration_let_go(struct core_registration *registration);

/* The same in two steps: whether this was the last hold, and what then unpins, and may take long.
 */
bool core_registration_drop(struct core_registration *registration);
void core_registration_free(struct core_registration *registration);

/*
 * Submit the steps, as job *number. false: there is room when job *number is done. A queue has room
 * for a job of any size when all others are done.
 */
bool core_queue_submit(struct core_queue *queue, uint64_t *number);

/* The number of the last job that is done. An error means that the others never will be. */
int core_queue_progress(const struct core_queue *queue, uint64_t *done, struct core_error *error);

/*
 * Whether there is a usable engine on a GPU; NULL: on the first one. Makes it if necessary, and
 * describes it in words.
 */
int core_engine_describe(const struct core_rm_gpu *gpu, char text[128], struct core_error *error);

#endif
