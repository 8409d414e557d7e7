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
	struct pid *process;   /* NULL: it has left */
	u64 address;
	struct block *block;
};

extern struct gpustandin_stats stats;

/*
 * One lock for everything, as the driver has one: free callbacks are made with it, and a caller
 * that is called back and calls in again is told so. False: the caller is that one.
 */
bool __must_check standin_lock(void);
void standin_unlock(void);

/* What follows is called with the lock. */

phys_addr_t block_physical(const struct block *block, u32 page);
struct block *block_create(const struct gpustandin_block *wanted);
void block_put(struct block *block);

/* Without a token it is one of the calling process. */
struct registration *registration_find(u64 token, u64 address, u64 length);
struct registration *registration_of_token(u64 token);

/* Calls back all that hold the pages of a registration, and gives the pages up for them. */
void rm_revoke(const struct registration *registration);
int rm_fail_next_get(int error);
int rm_free_in_next_get(u32 when);

/* Without the lock. */

int block_init(phys_addr_t start, u64 size);
void block_exit(void);
int pte_query(struct gpustandin_pte *query);
int fault_make(u32 kind);

/* The resource manager: its status codes, and what the peer-to-peer interface asks of it. */

#define NV_OK 0x00
#define NV_ERR_INVALID_ARGUMENT 0x1f
#define NV_ERR_NO_MEMORY 0x51
#define NV_ERR_NOT_SUPPORTED 0x56
#define NV_ERR_OBJECT_NOT_FOUND 0x57
#define NV_ERR_STATE_IN_USE 0x63
#define NV_ERR_GENERIC 0xffff

struct rm_get {
	u64 token;
	u64 address;
	u64 length;
	bool persistent;
	void *key; /* the page table: all that a put without a token goes by */
};

int rm_error(u32 status);
u32 rm_find(u64 address, u64 length, u32 *ordinal);
u32 rm_get_pages(const struct rm_get *get, u64 *physical);
u32 rm_register_callback(void *key, void (*callback)(void *data), void *data);
u32 rm_put_pages(u64 token, void *key);
u32 rm_put_pages_persistent(void *key);
int rm_hold_callbacks(u32 hold);
void rm_exit(void);

void *table_memory_alloc(size_t size);
void table_memory_free(void *bytes);
void table_memory_exit(void);

/* The peer-to-peer interface: p2p.c, or genuine.c with NVIDIA's nv-p2p.c. */
int p2p_init(void);
void p2p_exit(void);
void p2p_free_lost(void *key);
void nv_p2p_free_platform_data(void *data); /* NVIDIA's */

#endif
