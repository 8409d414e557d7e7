/* SPDX-License-Identifier: MIT */
/*
 * Descriptors that poll can wait on for an engine's interrupt.
 *
 * A node is a memfd, which is always ready; NV_ESC_ALLOC_OS_EVENT puts an eventfd in the
 * descriptor's place. As with the driver, a poll that reports the event also takes it, and a poll
 * of a non-blocking descriptor is never woken.
 *
 * All calls with the ledger's lock held, except those around a poll.
 */
#ifndef FAKERM_EVENT_H
#define FAKERM_EVENT_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

#include "nodes.h"

uint32_t serve_os_event(const struct open_node *node, void *argument);
uint32_t serve_free_os_event(const struct open_node *node, void *argument);

/* Whether the client made a descriptor of a node an event. */
bool event_of_client(int fd, uint32_t client);

void event_signal(int fd);

/* What was under a descriptor that is an event now. */
bool event_node(int fd, struct open_node *node);
bool event_has_node(const struct file_id *file);
void event_closed(int fd);
void event_start_in_child(void);

/* Around a poll: who sleeps in it, and what it reports is taken. */
void event_begin_poll(const struct pollfd *fds, nfds_t count);
void event_end_poll(struct pollfd *fds, nfds_t count, int reported);
bool event_exists(void);

/* Polls of events that run, and those that took one. */
int event_sleepers(void);
int event_wakes(void);

#endif
