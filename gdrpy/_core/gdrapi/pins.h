/* SPDX-License-Identifier: MIT */
/*
 * The pins of this process, by their handles: numbers that are never given out twice, so that a
 * stale or invented one is found out. A pin's place in memory is fixed and is never freed, so that
 * copies look one up without a lock.
 */
#ifndef GDRAPI_PINS_H
#define GDRAPI_PINS_H

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "session.h"

struct core_pin {
	/* What copies read: one cache line. */
	alignas(64) _Atomic(unsigned long) handle; /* 0: no pin */
	_Atomic(uintptr_t) mapping;		   /* 0: not mapped */
	_Atomic(size_t) length;
	_Atomic(enum core_mapping_kind) kind;
	_Atomic(unsigned int) generation; /* core_generation where it was made */

	alignas(64) pthread_mutex_t lock; /* of all that follows */
	struct gdr *owner;
	struct core_memory *memory; /* NULL in a child of the process that pinned it */
	size_t lead;		    /* bytes of it before the address that was pinned */
	struct core_view view;

	unsigned long next_handle;
	struct core_pin *next_free;
};

/* The memory is the pin's of addr from here on. ENOMEM leaves it the caller's, and is told. */
int core_pins_add(struct gdr *owner, struct core_memory *memory, uint64_t addr,
		  unsigned long *handle);

/* A handle is a pin's place among this many, plus a multiple of it for each use of the place. */
#define CORE_MAX_PINS (1ul << 20)
#define CORE_CHUNK_PINS 256ul

extern _Atomic(struct core_pin *) core_pin_chunks[CORE_MAX_PINS / CORE_CHUNK_PINS];

/* NULL if there is none of that handle. */
static inline struct core_pin *core_pins_find(unsigned long handle)
{
	unsigned long place = handle % CORE_MAX_PINS;
	struct core_pin *chunk = core_pin_chunks[place / CORE_CHUNK_PINS];
	struct core_pin *pin = chunk ? chunk + place % CORE_CHUNK_PINS : NULL;

	return handle && pin && pin->handle == handle ? pin : NULL;
}

/* 0, or why a call cannot be made on what was found, which is told: EINVAL, EACCES. */
int core_pins_check(const struct core_pin *pin, unsigned long handle, const char *call);

/* Enter a session and lock a pin of its. 0, or EINVAL or EACCES, which is told. */
int core_pins_enter(struct gdr *owner, unsigned long handle, const char *call,
		    struct core_pin **pin);
void core_pins_leave(struct core_pin *pin);

/* Of a locked pin: 0, or an errno, which is told. */
int core_pin_map(struct core_pin *pin, size_t size, enum core_mapping_kind wanted);
int core_pin_unmap(struct core_pin *pin);

/* Unmap, unpin and unlock a locked pin: it is gone, also where an error is told. */
int core_pin_end(struct core_pin *pin);

/* Likewise all pins of a session that nobody else has entered; the parent's in a forked child. */
int core_pins_end_all(struct gdr *owner);

/* With core_objects_lock held, by a child's only thread. */
void core_pins_begin_child(void);

/* Whether this process has mappings of more than one type. */
extern _Atomic bool core_mappings_mixed;

#endif
