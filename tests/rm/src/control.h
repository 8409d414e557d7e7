/* SPDX-License-Identifier: MIT */
/* RM_CONTROL's commands, and the helpers that they share with the other calls. */
#ifndef FAKERM_CONTROL_H
#define FAKERM_CONTROL_H

#include <stdint.h>

#include "ledger.h"

uint32_t serve_control(const struct open_node *node, void *argument);

/* The client, if it was made on this open file; else NULL. */
struct client *rm_client_on(const struct open_node *node, uint32_t handle);

/* Make the caller's choice of a new handle final: 0 means that any will do. Returns an RM status.
 */
uint32_t rm_choose_handle(const struct client *client, uint32_t *handle);

/* Make an object of the memory, or release it. Returns an RM status. */
uint32_t rm_adopt_memory(struct client *client, uint32_t parent, uint32_t *handle,
			 struct memory *memory);

#endif
