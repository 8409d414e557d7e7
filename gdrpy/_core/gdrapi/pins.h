/* SPDX-License-Identifier: MIT */
/*
 * The pins of this process, by handle. Handles are never reused, so that stale and invented ones
 * are detected. A pin's place in memory is fixed and never freed, so that copies find pins without
 * a lock.
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
	/* The fields that copies read: one cache line. */
	alignas(64) _Atomic(unsigned long) handle; /* 0: no pin */
	_Atomic(uintptr_t) mapping;		   /* 0: not mapped */
	_Atomic(size_t) length;
	_Atomic(enum core_mapping_kind) kind;
	_Atomic(unsigned int) generation; /* core_generation when it was made */

	alignas(64) pthread_mutex_t lock; /* guards everything below */
	struct gdr *owner;
	struct core_memory *memory; /* NULL in a child of the process that pinned it */
	size_t lead;		    /* its bytes before the pinned address */
	struct core_view view;

	unsigned long next_handle;
	struct core_pin *next_free;
};

/* Make a pin of addr, which then owns the memory. On ENOMEM, logged, the caller keeps it. */
int core_pins_add(struct gdr *owner, struct core_memory *memory, uint64_t addr,
		  unsigned long *handle);

/* A handle is a pin's place plus a multiple of CORE_MAX_PINS, another for each use of the place. */
#define CORE_MAX_PINS (1ul << 20)
#define CORE_CHUNK_PINS 256ul

extern _Atomic(struct core_pin *) core_pin_chunks[CORE_MAX_PINS / CORE_CHUNK_PINS];

/* NULL if no pin has this handle. */
static inline struct core_pin *core_pins_find(unsigned long handle)
{
	unsigned long place = handle % CORE_MAX_PINS;
	struct core_pin *chunk = core_pin_chunks[place / CORE_CHUNK_PINS];
	struct core_pin *pin = chunk ? chunk + place % CORE_CHUNK_PINS : NULL;

	return handle && pin && pin->handle == handle ? pin : NULL;
}

/* 0 if the pin that was found is usable, else EINVAL or EACCES, logged. */
int core_pins_check(const struct core_pin *pin, unsigned long handle, const char *call);

/* Enter a session and lock one of its pins: 0, or EINVAL or EACCES, logged. */
int core_pins_enter(struct gdr *owner, unsigned long handle, const char *call,
		    struct core_pin **pin);
void core_pins_leave(struct core_pin *pin);

/* Map or unmap a locked pin: 0, or an errno, logged. */
int core_pin_map(struct core_pin *pin, size_t size, enum core_mapping_kind wanted);
int core_pin_unmap(struct core_pin *pin);

/* Unmap, unpin and unlock a locked pin: it is gone even if an error is returned. */
int core_pin_end(struct core_pin *pin);

/* End all pins of a session that no other thread has entered; in a forked child, the parent's. */
int core_pins_end_all(struct gdr *owner);

/* Called with core_objects_lock held, by a child's only thread. */
void core_pins_begin_child(void);

/* Whether this process has mappings of more than one type. */
extern _Atomic bool core_mappings_mixed;

#endif
