/* SPDX-License-Identifier: GPL-2.0 OR MIT */
#ifndef GDRDRV_H
#define GDRDRV_H

#include <linux/file.h>
#include <linux/fs.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/poll.h>
#include <linux/seq_file.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/uidgid.h>
#include <linux/wait.h>
#include <linux/xarray.h>

#include "compat.h"
#include "nv_p2p.h"
#include "uapi/gdrdrv.h"

/* More than any machine has. It bounds what nvidia.ko allocates before it checks an address. */
#define GDRDRV_MAX_PIN_BYTES (1ull << 40)
/* For one pin: all GPU calls wait while the free callback zaps its mappings. */
#define GDRDRV_MAX_MAPPINGS 16384

/* A power of two; the ring is part of the open file. */
#define GDRDRV_EVENT_ROOM 128

struct gdrdrv_events {
	spinlock_t lock; /* everything below except the reader */
	wait_queue_head_t wait;
	u64 sequence;
	u32 lost;
	unsigned int head, tail; /* counting up; head is where the next event goes */
	struct gdrdrv_event ring[GDRDRV_EVENT_ROOM];
	struct mutex reader; /* one reader at a time, so that a failed copy loses nothing */
};

/*
 * A thread group. Its number may be reused after it ends, and a reference to its struct pid can be
 * dropped only through a GPL-only symbol. The number and its leader's start time are unique.
 */
struct gdrdrv_process {
	pid_t tgid;
	u64 start;
};

/* One open of the node. */
struct gdrdrv_file {
	struct gdrdrv_process owner;
	struct xarray pins; /* by handle; holds a reference to each pin's file */
	u32 last_handle;
	struct gdrdrv_events events;
};

/* Physically contiguous memory. */
struct gdrdrv_run {
	u64 start; /* in the pin */
	u64 length;
	phys_addr_t phys;
};

/* The GPU memory behind a pin: whole GPU pages. */
struct gdrdrv_pages {
	u64 va;
	u64 length;
	u32 p2p_flags;
	bool persistent;
	bool cacheable;
	bool held; /* all runs are recorded as write-combined */
	struct nvidia_p2p_page_table *table;
	struct gdrdrv_run *runs;
	unsigned int nr_runs;
};

enum gdrdrv_pin_state {
	GDRDRV_PIN_LIVE,
	GDRDRV_PIN_REVOKED, /* by nvidia.ko: the GPU memory was freed */
	GDRDRV_PIN_ENDED,   /* by its owner */
};

struct gdrdrv_user;

/*
 * A pin lives as long as its file, an anonymous one that is also its read-write share fd. The
 * file's address space contains the pin's mappings and nothing else. The registration at nvidia.ko
 * holds a reference, because the free callback may come after the pin has ended.
 */
struct gdrdrv_pin {
	struct file *file;
	u32 handle;
	u32 offset; /* of the requested address, in the first GPU page */
	bool zero_after;
	struct gdrdrv_process owner;
	struct gdrdrv_user *user; /* charged while registered */
	kuid_t uid;
	u64 cycles; /* spent in nvidia.ko */
	struct gdrdrv_pages pages;
	struct list_head live;
	wait_queue_head_t wait;
	bool zapped; /* no mapping shows the memory, now or later */

	/*
	 * The free callback takes it under nvidia.ko's lock, for which all GPU calls wait. So it is
	 * never held during a call into nvidia.ko or an allocation.
	 */
	struct mutex lock;
	enum gdrdrv_pin_state state;
	unsigned long registration; /* at nvidia.ko, 0: none; pages.table and .held end with it */
	struct gdrdrv_file *gfile;  /* gets the event of a revocation; NULL after unpin */
	u32 type;		    /* enum gdrdrv_mapping_type */
	unsigned int mappings;
	bool mapped_by_handle;
};

struct gdrdrv_pin_request {
	u64 addr;
	u64 size;
	bool persistent;
	bool force_pcie;
	bool zero_after;
};

static inline void gdrdrv_pin_put(struct gdrdrv_pin *pin)
{
	fput(pin->file);
}

/* True only once no mapping shows the memory: after that, no store reaches it. */
static inline bool gdrdrv_pin_has_ended(struct gdrdrv_pin *pin)
{
	/* Pairs with gdrdrv_pin_zap(). */
	return smp_load_acquire(&pin->zapped);
}

/* From the lowest layer up: a file calls only those above it in this list. */

/* process.c */
struct gdrdrv_process gdrdrv_current_process(void);
bool gdrdrv_is_current(const struct gdrdrv_process *process);

/* quota.c */
void gdrdrv_quota_init(void);
struct gdrdrv_user *gdrdrv_quota_charge(u64 length);
void gdrdrv_quota_uncharge(struct gdrdrv_user *user, u64 length);
void gdrdrv_quota_show(struct seq_file *seq, const kuid_t *only);
u64 gdrdrv_quota_pins(void);

/* stats.c */
enum gdrdrv_counter {
	GDRDRV_COUNT_PINS,
	GDRDRV_COUNT_PINS_REFUSED,
	GDRDRV_COUNT_UNPINS,
	GDRDRV_COUNT_REVOCATIONS,
	GDRDRV_COUNT_MAPPINGS,
	GDRDRV_COUNT_FAULTS,
	GDRDRV_COUNT_SHARES,
	GDRDRV_COUNT_EVENTS_LOST,
	GDRDRV_COUNT_WC_REFUSED,
	GDRDRV_COUNTERS,
};

void gdrdrv_count(enum gdrdrv_counter counter);
void gdrdrv_stats_add_pin(struct gdrdrv_pin *pin);
void gdrdrv_stats_remove_pin(struct gdrdrv_pin *pin);
int gdrdrv_stats_init(bool *use_persistent_mapping);
void gdrdrv_stats_exit(void);

/* pages.c */
int gdrdrv_pages_get(struct gdrdrv_pages *pages, struct nvidia_p2p_page_table **table,
		     void (*free_callback)(void *data), void *data);
int gdrdrv_pages_put(const struct gdrdrv_pages *pages, struct nvidia_p2p_page_table *table);
int gdrdrv_pages_count_runs(const struct gdrdrv_pages *pages);
void gdrdrv_pages_fill_runs(struct gdrdrv_pages *pages);
bool gdrdrv_pages_hold_type(const struct gdrdrv_pages *pages);
void gdrdrv_pages_release_type(const struct gdrdrv_pages *pages);
unsigned long gdrdrv_pages_pfn(const struct gdrdrv_pages *pages, u64 offset);
bool gdrdrv_force_pcie_supported(void);

/* event.c */
void gdrdrv_events_init(struct gdrdrv_events *events);
void gdrdrv_event_post(struct gdrdrv_events *events, u32 kind, u64 handle);
ssize_t gdrdrv_events_read(struct file *filp, char __user *to, size_t size, loff_t *pos);
__poll_t gdrdrv_events_poll(struct file *filp, poll_table *wait);

/* mmap.c */
int gdrdrv_map_by_handle(struct gdrdrv_pin *pin, struct vm_area_struct *vma, struct file *node);
int gdrdrv_map_pin(struct gdrdrv_pin *pin, struct vm_area_struct *vma);

/* share.c */
int gdrdrv_share_fs_get(void);
void gdrdrv_share_fs_put(void);
struct file *gdrdrv_share_new_file(struct gdrdrv_pin *pin);
int gdrdrv_share_open(struct file *filp, struct gdrdrv_pin *pin, bool read_only,
		      struct file **share);

/* pin.c */
struct gdrdrv_pin *gdrdrv_pin_create(struct gdrdrv_file *gfile,
				     const struct gdrdrv_pin_request *request);
int gdrdrv_pin_publish(struct gdrdrv_file *gfile, struct gdrdrv_pin *pin);
void gdrdrv_pin_abandon(struct gdrdrv_file *gfile, struct gdrdrv_pin *pin);
struct gdrdrv_pin *gdrdrv_pin_get(struct gdrdrv_file *gfile, u64 handle);
int gdrdrv_unpin(struct gdrdrv_file *gfile, u64 handle);
void gdrdrv_unpin_all(struct gdrdrv_file *gfile);
bool gdrdrv_pin_was_revoked(struct gdrdrv_pin *pin);
int gdrdrv_pin_set_type(struct gdrdrv_pin *pin, u32 type);

/* ioctl.c */
extern bool gdrdrv_use_persistent_mapping;
long gdrdrv_ioctl(struct file *filp, unsigned int cmd, unsigned long arg);

#endif
