/* SPDX-License-Identifier: MIT */
/*
 * Channels to the copy engines, and the objects and controls that they take.
 *
 *   FAKE_RM_GPU       whose classes: hopper, turing, ga100, ada, gb100 or gb20x; else hopper
 *   FAKE_RM_NO_COPY   1: a GPU whose classes have no copy class
 *
 * An H100's engines: COPY0 and COPY1 are GRCE, COPY2 and COPY3 shared, COPY4 neither.
 *
 * All calls with the ledger's lock held.
 */
#ifndef FAKERM_CHANNEL_H
#define FAKERM_CHANNEL_H

#include "abi.h"
#include "ledger.h"
#include "nodes.h"

/* RM_ALLOC of one of these classes; RM_INVALID_CLASS for any other. */
uint32_t channel_alloc(const struct open_node *node, struct rm_alloc *alloc);

/* RM_ALLOC_MEMORY: pages of the process. */
uint32_t serve_user_memory(const struct open_node *node, void *argument);

uint32_t serve_register_fd(const struct open_node *node, void *argument);

/* Controls; `part` is what they are on, a channel or a group. */
uint32_t class_list(struct client *client, struct part *part, void *params);
uint32_t copy_caps(struct client *client, struct part *part, void *params);
uint32_t bind_engine(struct client *client, struct part *part, void *params);
uint32_t schedule(struct client *client, struct part *part, void *params);
uint32_t set_timeslice(struct client *client, struct part *part, void *params);
uint32_t get_timeslice(struct client *client, struct part *part, void *params);
uint32_t get_token(struct client *client, struct part *part, void *params);

/* Report the channels that still use memory that is freed as their USERD or notifier. */
void channels_forget_memory(struct device *device, uint32_t memory);

#endif
