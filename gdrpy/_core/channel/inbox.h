/* SPDX-License-Identifier: MIT */
/*
 * An inbox's memory, and a producer on the CPU that stands in for kernels. The header that kernels
 * include has both ends; docs/channel-protocol.md describes the protocol.
 */
#ifndef GDRPY_CHANNEL_INBOX_H
#define GDRPY_CHANNEL_INBOX_H

#include <stdint.h>

#include "copy/copy.h"
#include "gdrpy/inbox.h"

/* Offsets in the GPU memory: apart, because every push changes the first word. */
#define CORE_INBOX_RESERVED 128
#define CORE_INBOX_TAKEN 256
#define CORE_INBOX_NBYTES 384

/* Offsets in the host memory. */
#define CORE_INBOX_END 0
#define CORE_INBOX_HEAD 128
/* Of a named inbox alone. */
#define CORE_INBOX_BEGAN 64   /* the first number that kernels launched last were to take */
#define CORE_INBOX_CLOSER 192 /* the reader that closed it last; 0 if another has begun */
#define CORE_INBOX_SLOTS 256

/* So that no two records of a slot, one after the other, have the same stamp. */
#define CORE_SLOTS_MAX (INT64_C(1) << 31)

/* The least that a slot takes for each byte of its record. */
#define CORE_SLOT_FACTOR 2

/* Make the slots empty, in memory that is mapped in this way. */
void core_slots_clear(enum core_mapping_kind type, const struct gdr_slots *slots);

/* Lay the inbox out in `memory` and `host`, this process's mappings; the slots' sizes are set. */
void core_inbox_place(struct gdr_inbox_reader *reader, char *memory, char *host);

/* The descriptor for kernels. The addresses are the GPU's. */
struct gdr_inbox core_inbox_described(const struct gdr_inbox_reader *reader, uint64_t memory_ptr,
				      uint64_t host_ptr);

/*
 * Zero the words and slots in `memory` and `host`, this process's mappings, and write the
 * descriptor that kernels read. The two addresses are the GPU's. `reader` gets all but its slots,
 * whose size and number it has.
 */
void core_inbox_begin(struct gdr_inbox_reader *reader, enum core_mapping_kind type, char *memory,
		      char *host, uint64_t memory_ptr, uint64_t host_ptr);

/* How many numbers producers have taken: a load over the bus. */
uint64_t core_inbox_reserved(const struct gdr_inbox_reader *reader);

/*
 * Pass numbers below `settled` whose records will never be whole: their producers are gone. Stops
 * at a record that is whole.
 */
void core_inbox_pass(struct gdr_inbox_reader *reader, uint64_t settled);

/* By the kernel's end, for a reader that died: tell producers that it takes no more. */
void core_inbox_end_reading(const struct gdr_inbox_reader *reader);

/*
 * By the kernel's end, while no kernel runs: give producers the room that there is. False if the
 * reader's counter makes no sense.
 */
bool core_inbox_give_room(const struct gdr_inbox_reader *reader);

struct core_inbox_writer {
	struct gdr_inbox inbox; /* its addresses are this process's */
	uint64_t reserved;	/* records pushed, by any producer */
	uint64_t taken;		/* as last read */
	bool broken;		/* the reader's counter had an impossible value */
};

/* Continue after the records of others: nothing else may push until this is done with. */
void core_inbox_writer_begin(struct core_inbox_writer *writer,
			     const struct gdr_inbox_reader *reader, char *memory);

/* Push as many of `count` records as fit, and return how many; none once the reader is closed. */
uint64_t core_inbox_push(struct core_inbox_writer *writer, const char *records, uint64_t count);

/* Whether the reader has told of room, or of its end, since the last look. */
bool core_inbox_moved(const struct core_inbox_writer *writer);

#endif
