/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What the parts of the stand-in share. */
#ifndef STANDIN_H
#define STANDIN_H

#include <linux/fs.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/types.h>

#include "gpustandin.h"

/* A block of GPU memory: pages of the BAR, in the order of its bytes. */
struct block {
	unsigned int references;
	u64 id;
	u32 ordinal;
	u32 count;
	u32 pages[];
};

/* A block at an address of a process. */
struct registration {
	struct list_head all;
	struct list_head view; /* of the open file that it goes away with */
	struct pid *process;
	u64 address;
	struct block *block;
};

extern struct gpustandin_stats stats;

/*
 * One lock for everything, as the driver has one: free callbacks are made with it, and who has been
 * called back and calls in again is told so. False: the caller is that one.
 */
bool __must_check standin_lock(void);
void standin_unlock(void);

/* What follows is called with the lock. */

phys_addr_t block_physical(const struct block *block, u32 page);
struct block *block_create(const struct gpustandin_block *wanted);
void block_put(struct block *block);

struct registration *registration_find(u64 address, u64 length);

/* Calls back all who hold the pages of a registration, and gives the pages up for them. */
void p2p_revoke(const struct registration *registration);
void p2p_fail_next(int error);

/* Without the lock. */

int block_init(phys_addr_t start, u64 size);
void block_exit(void);
int p2p_hold_callbacks(u32 hold);
int pte_query(struct gpustandin_pte *query);
int fault_make(u32 kind);

#endif
