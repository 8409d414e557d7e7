/* SPDX-License-Identifier: MIT */
/*
 * What the simulated driver says to /dev/gpustandin, the kernel module of tests/vm/standin that
 * plays a GPU with memory on a PCI bar. An open file is nothing at first; it becomes one view of a
 * block of GPU memory, which can be mapped and lives as long as a view, a mapping or a pin of it.
 */
#ifndef GDRPY_SIM_GPUSTANDIN_H
#define GDRPY_SIM_GPUSTANDIN_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define GPUSTANDIN_NODE "/dev/gpustandin"

/* GPU pages, in which memory is handed out and pinned. */
#define GPUSTANDIN_PAGE 65536

#define GPUSTANDIN_SCATTERED 1 /* no two pages next to each other in the right order */

struct gpustandin_block {
	__u64 size; /* a multiple of the page */
	__u64 id;   /* never given twice; not looked at by CREATE */
	__u32 ordinal;
	__u32 flags;
};

/* The cache modes of a page table entry. */
enum gpustandin_mode {
	GPUSTANDIN_WB,
	GPUSTANDIN_WC,
	GPUSTANDIN_UC_MINUS,
	GPUSTANDIN_UC,
	GPUSTANDIN_OTHER,
};

/* What a kernel reports: a warning everywhere, the others with its checkers built in. */
enum gpustandin_fault {
	GPUSTANDIN_WARNING,
	GPUSTANDIN_USE_AFTER_FREE,
	GPUSTANDIN_LEAK,
	GPUSTANDIN_LOCK_INVERSION,
	GPUSTANDIN_SLEEP_IN_ATOMIC,
	GPUSTANDIN_DATA_RACE, /* of two callers: each takes half a second */
};

/* When the memory of the next revocable get is freed while that is under way. */
enum gpustandin_free_in_get {
	GPUSTANDIN_NOT_IN_GET,
	GPUSTANDIN_BEFORE_CALLBACK, /* pinned, but its callback is not known yet */
	GPUSTANDIN_AFTER_CALLBACK,
};

struct gpustandin_pte {
	__u64 address;	/* of the caller's */
	__u64 physical; /* the rest is answered; nothing mapped is -EFAULT */
	__u32 mode;
	__u32 writable;
};

/* Counts of what there is now, then of what has happened. */
struct gpustandin_stats {
	__u64 blocks;
	__u64 block_pages;
	__u64 registrations;
	__u64 pins;
	__u64 persistent_pins;
	__u64 pinned_pages;   /* by pins of both kinds */
	__u64 held_callbacks; /* that wait to be let go */
	__u64 waiting_calls;  /* of the peer-to-peer interface, for the lock */
	__u64 callbacks;      /* made */
	__u64 late_puts;      /* that found no such pin of the calling process */
	__u64 forced_bar1_pins;
	__u64 gets;	   /* that reached the resource manager */
	__u64 lost_tables; /* freed before the callback was known: nv-p2p.c leaks their tables */
};

/* A fresh block, zeroed, for a file that is nothing yet; a second view of another file's block. */
#define GPUSTANDIN_CREATE _IOWR('G', 1, struct gpustandin_block)
#define GPUSTANDIN_ATTACH _IOW('G', 2, __s32)
#define GPUSTANDIN_INFO _IOR('G', 3, struct gpustandin_block)

/*
 * The block is the calling process's GPU memory at an address, to be found by who pins it, until it
 * is taken away again or the file is closed. Either makes the callbacks of the pins before it ends.
 */
#define GPUSTANDIN_REGISTER _IOW('G', 4, __u64)
#define GPUSTANDIN_UNREGISTER _IOW('G', 5, __u64)

/* For tests. The next get_pages fails so: a positive errno, or 524 (ENOTSUPP). */
#define GPUSTANDIN_FAIL_GET _IOW('G', 16, __s32)
/* 1: callbacks wait, with the driver's lock held, before they are made; 0: no longer. */
#define GPUSTANDIN_HOLD_CALLBACKS _IOW('G', 17, __u32)
#define GPUSTANDIN_PTE _IOWR('G', 18, struct gpustandin_pte)
#define GPUSTANDIN_STATS _IOR('G', 19, struct gpustandin_stats)
/* Does wrong, enum gpustandin_fault says how, so that a bed can be seen to notice. */
#define GPUSTANDIN_FAULT _IOW('G', 20, __u32)
/* enum gpustandin_free_in_get */
#define GPUSTANDIN_FREE_IN_GET _IOW('G', 21, __u32)
/*
 * The process of a REGISTER at an address leaves the memory's list of processes: the memory is
 * there, but a put by the process finds none of its pins. In nvidia.ko a process joins another
 * one's list by an RM client of its own, and leaves it when that client is freed.
 */
#define GPUSTANDIN_FORGET _IOW('G', 22, __u64)

#endif
