/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What tests say to /dev/p2pprobe. */
#ifndef P2PPROBE_H
#define P2PPROBE_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define P2PPROBE_PERSISTENT 1
#define P2PPROBE_PUT_IN_CALLBACK 2 /* which is forbidden */

struct p2pprobe_get {
	__u64 address;
	__u64 size;
	__u32 flags;
	__u32 driver_flags; /* for a persistent pin */
	/* Answered: what the page table says. */
	__u32 version;
	__u32 page_size;
	__u32 entries;
	__u32 table_flags;
	__u64 first; /* physical addresses */
	__u64 last;
};

#define P2PPROBE_GET _IOWR('P', 1, struct p2pprobe_get)
#define P2PPROBE_PUT _IO('P', 2)
#define P2PPROBE_CALLBACKS _IO('P', 3) /* returns how many were made */
#define P2PPROBE_FORGET _IO('P', 4)    /* does not put what it has got */

#endif
