/* SPDX-License-Identifier: MIT */
/*
 * The simulated resource manager: what the driver does with a call on one of its nodes.
 *
 * Stricter than the driver where the driver ignores a field: what is not zero without need, or
 * names the wrong parent, is refused.
 */
#ifndef FAKERM_RM_H
#define FAKERM_RM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "nodes.h"

/* 0, or a negative errno; the status is in the structure, as with the driver. */
int rm_ioctl(const struct open_node *node, unsigned long request, uint64_t argument);

/* An address, or MAP_FAILED with errno set. */
void *rm_mmap(const struct open_node *node, int fd, void *address, size_t length, int prot,
	      int flags, off_t offset);

/* Whether the descriptor is an open node, or was one before it became an event; if so, which. */
bool rm_node_of_fd(int fd, struct open_node *node);

/* For every munmap and close of the process, in place of the C library's. */
int rm_munmap(void *address, size_t length);
int rm_close(int fd);

#endif
