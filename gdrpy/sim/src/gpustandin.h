/* SPDX-License-Identifier: MIT */
/*
 * The interface of /dev/gpustandin, the kernel module in tests/vm/standin that simulates a GPU with
 * memory on a PCI BAR. An open file is empty at first. It becomes one view of a block of GPU
 * memory, which can be mapped and lives as long as it has a view, a mapping or a pin.
 */
#ifndef GDRPY_SIM_GPUSTANDIN_H
#define GDRPY_SIM_GPUSTANDIN_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define GPUSTANDIN_NODE "/dev/gpustandin"

/* GPU pages, in which memory is handed out and pinned. */
#define GPUSTANDIN_PAGE 65536

#define GPUSTANDIN_SCATTERED 1 /* no two pages are adjacent in the right order */

struct gpustandin_block {
	__u64 size; /* a multiple of the page */
	__u64 id;   /* never reused; ignored by CREATE */
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

/* Faults that a kernel reports: a warning always, the others if built with checkers. */
enum gpustandin_fault {
	GPUSTANDIN_WARNING,
	GPUSTANDIN_USE_AFTER_FREE,
	GPUSTANDIN_LEAK,
	GPUSTANDIN_LOCK_INVERSION,
	GPUSTANDIN_SLEEP_IN_ATOMIC,
	GPUSTANDIN_DATA_RACE, /* needs two callers, each for half a second */
};

/* At which point during the next revocable get its memory is freed. */
enum gpustandin_free_in_get {
	GPUSTANDIN_NOT_IN_GET,
	GPUSTANDIN_BEFORE_CALLBACK, /* pinned, but its callback is not known yet */
	GPUSTANDIN_AFTER_CALLBACK,
};

struct gpustandin_pte {
	__u64 address;	/* in the calling process */
	__u64 physical; /* from here on: output. -EFAULT if nothing is mapped */
	__u32 mode;
	__u32 writable;
};

/* Counts of existing objects, then of past events. */
struct gpustandin_stats {
	__u64 blocks;
	__u64 block_pages;
	__u64 registrations;
	__u64 pins;
	__u64 persistent_pins;
	__u64 pinned_pages;   /* by both kinds of pins */
	__u64 held_callbacks; /* waiting to be released */
	__u64 waiting_calls;  /* peer-to-peer calls waiting for the lock */
	__u64 callbacks;      /* made */
	__u64 late_puts;      /* puts that found no such pin of the process */
	__u64 forced_bar1_pins;
	__u64 gets;	   /* gets that reached the resource manager */
	__u64 lost_tables; /* freed before the callback was known: nv-p2p.c leaks their tables */
};

/* For an empty file: a new, zeroed block, or another view of a different file's block. */
#define GPUSTANDIN_CREATE _IOWR('G', 1, struct gpustandin_block)
#define GPUSTANDIN_ATTACH _IOW('G', 2, __s32)
#define GPUSTANDIN_INFO _IOR('G', 3, struct gpustandin_block)

/*
 * Makes the block the calling process's GPU memory at an address, where it can be pinned until
 * UNREGISTER or until the file is closed. Both make the callbacks of its pins before they return.
 */
#define GPUSTANDIN_REGISTER _IOW('G', 4, __u64)
#define GPUSTANDIN_UNREGISTER _IOW('G', 5, __u64)

/* For tests. The next get_pages fails with a positive errno, or 524 (ENOTSUPP). */
#define GPUSTANDIN_FAIL_GET _IOW('G', 16, __s32)
/* 1: callbacks wait before they are made, with the driver's lock held; 0: they do not. */
#define GPUSTANDIN_HOLD_CALLBACKS _IOW('G', 17, __u32)
#define GPUSTANDIN_PTE _IOWR('G', 18, struct gpustandin_pte)
#define GPUSTANDIN_STATS _IOR('G', 19, struct gpustandin_stats)
/* Triggers an enum gpustandin_fault, to show that the test bed detects it. */
#define GPUSTANDIN_FAULT _IOW('G', 20, __u32)
/* enum gpustandin_free_in_get */
#define GPUSTANDIN_FREE_IN_GET _IOW('G', 21, __u32)
/*
 * Removes the process of a REGISTER at an address from the memory's list of processes: the memory
 * remains, but a put by the process finds none of its pins. In nvidia.ko a process joins another
 * one's list with an RM client, and leaves it when that client is freed.
 */
#define GPUSTANDIN_FORGET _IOW('G', 22, __u64)

#endif
