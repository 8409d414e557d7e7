/* SPDX-License-Identifier: MIT */
#include "pins.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "log.h"

_Atomic bool core_mappings_mixed;

_Atomic(struct core_pin *) core_pin_chunks[CORE_MAX_PINS / CORE_CHUNK_PINS];

/* Guarded by core_objects_lock. */
static struct core_pin *free_pins;
static unsigned long chunk_count;
static unsigned int mappings_of[CORE_MAPPING_DEVICE + 1];

static bool add_chunk(void)
{
	struct core_pin *chunk;

	if (chunk_count == CORE_MAX_PINS / CORE_CHUNK_PINS)
		return false;
	chunk = aligned_alloc(alignof(struct core_pin), CORE_CHUNK_PINS * sizeof(*chunk));
	if (!chunk)
		return false;
	for (unsigned long i = CORE_CHUNK_PINS; i--;) {
		chunk[i] = (struct core_pin){
			.next_handle = CORE_MAX_PINS + chunk_count * CORE_CHUNK_PINS + i,
			.next_free = free_pins,
		};
		pthread_mutex_init(&chunk[i].lock, NULL);
		free_pins = &chunk[i];
	}
	core_pin_chunks[chunk_count++] = chunk;
	return true;
}

static struct core_pin *take_free(void)
{
	struct core_pin *pin = NULL;

	pthread_mutex_lock(&core_objects_lock);
	if (free_pins || add_chunk()) {
		pin = free_pins;
		free_pins = pin->next_free;
	}
	pthread_mutex_unlock(&core_objects_lock);
	return pin;
}

static void give_free(struct core_pin *pin)
{
	pthread_mutex_lock(&core_objects_lock);
	pin->next_free = free_pins;
	free_pins = pin;
	pthread_mutex_unlock(&core_objects_lock);
}

int core_pins_add(struct gdr *owner, struct core_memory *memory, uint64_t addr,
		  unsigned long *handle)
{
	struct core_pin *pin = take_free();

	if (!pin)
		return core_refuse(ENOMEM,
				   "gdr_pin_buffer: no room for another pin: end some of the "
				   "%lu existing ones",
				   chunk_count * CORE_CHUNK_PINS);
	pthread_mutex_lock(&pin->lock);
	pin->owner = owner;
	pin->memory = memory;
	pin->lead = (size_t)(addr - memory->va);
	pin->generation = core_generation;
	*handle = pin->next_handle;
	pin->next_handle += CORE_MAX_PINS;
	pin->handle = *handle;
	pthread_mutex_unlock(&pin->lock);
	return 0;
}

int core_pins_check(const struct core_pin *pin, unsigned long handle, const char *call)
{
	if (!pin)
		return core_refuse(EINVAL,
				   "%s: handle %#lx is not a pin of this gdr_t: pass one from "
				   "gdr_pin_buffer() that gdr_unpin_buffer() has not ended",
				   call, handle);
	if (pin->generation != core_generation)
		return core_refuse(
			EACCES,
			"%s: handle %#lx belongs to the parent process: pin the memory again "
			"in this one",
			call, handle);
	return 0;
}

int core_pins_enter(struct gdr *owner, unsigned long handle, const char *call,
		    struct core_pin **found)
{
	int ret = core_session_enter(owner, call);
	struct core_pin *pin;

	if (ret)
		return ret;
	pin = core_pins_find(handle);
	if (pin && pin->generation == core_generation) {
		pthread_mutex_lock(&pin->lock);
		if (pin->handle == handle && pin->owner == owner) {
			*found = pin;
			return 0;
		}
		pthread_mutex_unlock(&pin->lock);
		pin = NULL;
	}
	core_session_leave(owner);
	return core_pins_check(pin, handle, call);
}

void core_pins_leave(struct core_pin *pin)
{
	struct gdr *owner = pin->owner;

	pthread_mutex_unlock(&pin->lock);
	core_session_leave(owner);
}

static void count_mapping(enum core_mapping_kind kind, int change)
{
	int kinds = 0;

	pthread_mutex_lock(&core_objects_lock);
	mappings_of[kind] += change;
	for (int i = CORE_MAPPING_WC; i <= CORE_MAPPING_DEVICE; i++)
		kinds += mappings_of[i] != 0;
	core_mappings_mixed = kinds > 1;
	pthread_mutex_unlock(&core_objects_lock);
}

/*
 * How many bytes gdr_map(size) makes accessible: those before the pinned address, `size` from it
 * on, and the rest of the last CPU page, as far as they are pinned.
 */
static size_t whole_pages(const struct core_pin *pin, size_t size)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t rounded = (pin->lead + size + page - 1) & ~(page - 1);

	return rounded < pin->memory->nbytes ? rounded : pin->memory->nbytes;
}

int core_pin_map(struct core_pin *pin, size_t size, enum core_mapping_kind wanted)
{
	struct core_error error;

	if (core_memory_want(pin->memory, wanted, &error) ||
	    core_memory_map(pin->memory, 0, whole_pages(pin, size), false, &pin->view, &error))
		return core_refuse(error.failure == CORE_FAILED_UNAVAILABLE ? EINVAL : error.number,
				   "gdr_map: %s", error.message);
	count_mapping(pin->view.kind, 1);
	pin->kind = pin->view.kind;
	pin->length = pin->view.map.nbytes;
	pin->mapping = (uintptr_t)pin->view.map.address;
	return 0;
}

int core_pin_unmap(struct core_pin *pin)
{
	struct core_error error;

	pin->mapping = 0;
	count_mapping(pin->view.kind, -1);
	if (core_memory_unmap(pin->memory, &pin->view, &error))
		return core_refuse(error.number, "gdr_unmap: %s", error.message);
	return 0;
}

int core_pin_end(struct core_pin *pin)
{
	struct core_error error;
	int ret = 0;

	pin->handle = 0;
	if (pin->mapping)
		ret = core_pin_unmap(pin);
	if (core_memory_release(pin->memory, &error) && !ret)
		ret = core_refuse(error.number, "gdr_unpin_buffer: %s", error.message);
	give_free(pin);
	pthread_mutex_unlock(&pin->lock);
	return ret;
}

/* A pin of the parent process has nothing left to release. */
static int end_of(struct gdr *owner, struct core_pin *pin)
{
	pthread_mutex_lock(&pin->lock);
	if (pin->handle && pin->owner == owner) {
		if (pin->memory)
			return core_pin_end(pin);
		pin->handle = 0;
		give_free(pin);
	}
	pthread_mutex_unlock(&pin->lock);
	return 0;
}

int core_pins_end_all(struct gdr *owner)
{
	struct core_pin *chunk;
	int first = 0;

	for (unsigned long i = 0;
	     i < CORE_MAX_PINS / CORE_CHUNK_PINS && (chunk = core_pin_chunks[i]); i++)
		for (struct core_pin *pin = chunk; pin < chunk + CORE_CHUNK_PINS; pin++) {
			int ret = pin->handle ? end_of(owner, pin) : 0;

			first = first ? first : ret;
		}
	return first;
}

void core_pins_begin_child(void)
{
	for (unsigned long i = 0; i < chunk_count * CORE_CHUNK_PINS; i++) {
		struct core_pin *pin = &core_pin_chunks[i / CORE_CHUNK_PINS][i % CORE_CHUNK_PINS];

		pthread_mutex_init(&pin->lock, NULL);
		if (pin->handle && pin->memory)
			core_memory_forget(pin->memory);
		pin->memory = NULL;
		pin->mapping = 0;
	}
	memset(mappings_of, 0, sizeof(mappings_of));
	core_mappings_mixed = false;
}
