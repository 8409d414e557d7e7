/* SPDX-License-Identifier: MIT */
/*
 * Faults to order: FAKE_RM_FAULT in the environment, or fault_set() at run time, hold a list
 * separated by commas.
 *
 *   RM_MAP_MEMORY:2:0x51    the 2nd such call from now answers this status, once
 *   GET_SURFACE_INFO:1:0x56 the same for one control command or one class
 *   CARD_INFO:1:5           calls that have no status fail with an errno: CARD_INFO, CHECK_VERSION,
 *                           REGISTER_FD,
 *   ioctl:3:4               ioctl (any of them), mmap and munmap
 *   ENGINE:3:79             the 3rd entry of a ring from now kills its channel with this Xid
 *   INTERRUPT:1:1           the 1st interrupt of an engine from now is lost
 *   STALL:1:90              the 1st entry of a ring from now begins after so many seconds (clock.h)
 *   STALL_UNMAP:1:90        the 1st RM_UNMAP_MEMORY_DMA from now takes so many seconds
 *   open:/dev/nvidiactl:13  opening this path fails with an errno, every time; with EINTR, once
 *
 * All calls with the ledger's lock held.
 */
#ifndef FAKERM_FAULT_H
#define FAKERM_FAULT_H

#include <stdint.h>

/* Replace all faults; NULL or "" for none. 0, or -EINVAL, with a line on stderr and no change. */
int fault_set(const char *specification);

/* Count a call. The fault that it shall meet, or 0. */
uint32_t fault_take(const char *call);

/* The errno that opening the path shall fail with, or 0. */
int fault_of_open(const char *path);

#endif
