/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The part of nvidia.ko's peer-to-peer interface that this module uses. A build with a driver's
 * nv-p2p.h (NVIDIA_SRC) uses that header instead.
 */
#ifndef GDRDRV_NV_P2P_H
#define GDRDRV_NV_P2P_H

#ifdef GDRDRV_NVIDIA_HEADER

#include <nv-p2p.h>

#else

#include <linux/types.h>

/* Versions of the page table. Minor versions only add members at the end. */
#define NVIDIA_P2P_PAGE_TABLE_VERSION_1_2 0x00010002 /* up to driver 575: no flags */
#define NVIDIA_P2P_PAGE_TABLE_VERSION_2_0 0x00020000 /* from driver 580.65.06 */

enum nvidia_p2p_page_size_type {
	NVIDIA_P2P_PAGE_SIZE_4KB = 0,
	NVIDIA_P2P_PAGE_SIZE_64KB,
	NVIDIA_P2P_PAGE_SIZE_128KB,
	NVIDIA_P2P_PAGE_SIZE_COUNT,
};

struct nvidia_p2p_page {
	u64 physical_address;
	union {
		u32 words[6];
	} registers;
};

struct nvidia_p2p_page_table {
	u32 version;
	u32 page_size; /* enum nvidia_p2p_page_size_type */
	struct nvidia_p2p_page **pages;
	u32 entries;
	u8 *gpu_uuid;
	u32 flags; /* only from version 2.0 */
};

int nvidia_p2p_get_pages(u64 p2p_token, u32 va_space, u64 virtual_address, u64 length,
			 struct nvidia_p2p_page_table **page_table,
			 void (*free_callback)(void *data), void *data);
int nvidia_p2p_put_pages(u64 p2p_token, u32 va_space, u64 virtual_address,
			 struct nvidia_p2p_page_table *page_table);
int nvidia_p2p_get_pages_persistent(u64 virtual_address, u64 length,
				    struct nvidia_p2p_page_table **page_table, u32 flags);
int nvidia_p2p_put_pages_persistent(u64 virtual_address, struct nvidia_p2p_page_table *page_table,
				    u32 flags);
int nvidia_p2p_free_page_table(struct nvidia_p2p_page_table *page_table);

#endif /* GDRDRV_NVIDIA_HEADER */

/* Defined here because drivers before 570 and 580 do not declare them. */
#define GDRDRV_P2P_GET_PAGES_FORCE_BAR1 1u
#define GDRDRV_P2P_PAGE_TABLE_CPU_CACHEABLE 1u

#endif
