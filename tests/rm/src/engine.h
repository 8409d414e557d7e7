/* SPDX-License-Identifier: MIT */
/*
 * What the GPU does with a channel: a thread a channel looks at the doorbell and works off the
 * ring. What the hardware leaves open is done in the way that a careless client notices:
 *
 *   - copies in flight are pipelined ones and the one before them; the last one begins first
 *   - a semaphore waits for copies in flight only if its launch flushes
 *   - a flush without a semaphore does nothing
 *   - a channel that waits for a word holds up its engine, unless it says to switch meanwhile
 *
 *   FAKE_RM_DELAY    a seed: rest at random places, read entries and pushbuffers late, let copies
 *                    in flight begin in any order, and tell of an Xid late
 *
 * A wrong stream or address is an Xid: a line on stderr, the error notifier, a dead channel.
 */
#ifndef FAKERM_ENGINE_H
#define FAKERM_ENGINE_H

#include "ledger.h"

struct channel_setup {
	struct client *client;
	struct device *device;
	uint32_t handle;
	uint32_t group; /* 0 for none */
	uint32_t address_space;
	uint32_t engine;
	uint32_t error; /* memory, or 0 */
	uint32_t userd; /* memory */
	uint64_t userd_offset;
	uint64_t ring;
	uint32_t entries;
};

/* All with the ledger's lock held. NULL when out of memory or threads. */
struct channel *engine_start(const struct channel_setup *setup);
void engine_stop(struct channel *channel);

void engine_set_class(struct channel *channel, uint32_t class);
void engine_bind(struct channel *channel);
bool engine_is_bound(const struct channel *channel);
void engine_schedule(struct channel *channel, bool on);
uint32_t engine_token(const struct channel *channel);

/* Whether its USERD is that of the setup. */
bool engine_has_userd(const struct channel *channel, const struct channel_setup *setup);
void engine_forget_memory(struct channel *channel, uint32_t memory);

#endif
