// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The memory behind a pin: obtained from nvidia.ko, and recorded as write-combined. */
#include <linux/delay.h>
#include <linux/err.h>
#include <linux/io.h>

#include "gdrdrv.h"

/* nvidia.ko's "not supported", which is not an errno of user space. */
#define NVIDIA_ENOTSUPP 524

#define PUT_ATTEMPTS 50
#define PUT_PAUSE_MS 10

bool gdrdrv_force_pcie_supported(void)
{
#if defined(GDRDRV_NVIDIA_HEADER) && !defined(NVIDIA_P2P_FLAGS_FORCE_BAR1_MAPPING)
	return false;
#else
	return true;
#endif
}

/*
 * *table is a separate variable of the caller, because nvidia.ko writes to it before it succeeds,
 * and even if it fails.
 */
int gdrdrv_pages_get(struct gdrdrv_pages *pages, struct nvidia_p2p_page_table **table,
		     void (*free_callback)(void *data), void *data)
{
	int ret;

	if (pages->persistent)
		ret = nvidia_p2p_get_pages_persistent(pages->va, pages->length, table,
						      pages->p2p_flags);
	else
		ret = nvidia_p2p_get_pages(0, 0, pages->va, pages->length, table, free_callback,
					   data);
	return ret == -NVIDIA_ENOTSUPP ? -EOPNOTSUPP : ret;
}

/* nvidia.ko may lack the memory to start, so the call is repeated for a while. */
int gdrdrv_pages_put(const struct gdrdrv_pages *pages, struct nvidia_p2p_page_table *table)
{
	int attempt, ret = -ENOMEM;

	for (attempt = 0; ret == -ENOMEM && attempt < PUT_ATTEMPTS; attempt++) {
		if (attempt)
			msleep(PUT_PAUSE_MS);
		if (pages->persistent)
			ret = nvidia_p2p_put_pages_persistent(pages->va, table, 0);
		else
			ret = nvidia_p2p_put_pages(0, 0, pages->va, table);
	}
	return ret;
}

/*
 * Tables of version 1.2 have no flags. NVIDIA's gdrdrv trusts them from 1.3 on; drivers went
 * from 1.2 to 2.0. Without flags, coherent memory such as Grace's is RAM to the kernel, which has a
 * cached mapping of it, and no other type may coexist with that.
 */
static bool gdrdrv_table_is_cacheable(const struct nvidia_p2p_page_table *table)
{
#if !defined(GDRDRV_NVIDIA_HEADER) || NVIDIA_P2P_PAGE_TABLE_VERSION >= 0x00010003
	if (table->version >= 0x00010003)
		return table->flags & GDRDRV_P2P_PAGE_TABLE_CPU_CACHEABLE;
#endif
	return gdrdrv_is_ram(table->pages[0]->physical_address >> PAGE_SHIFT);
}

/* Bytes per entry; 0 for a table that this module does not understand. */
static u64 gdrdrv_table_entry_size(const struct nvidia_p2p_page_table *table)
{
	static const u32 sizes[] = {
		[NVIDIA_P2P_PAGE_SIZE_4KB] = 4096,
		[NVIDIA_P2P_PAGE_SIZE_64KB] = 65536,
		[NVIDIA_P2P_PAGE_SIZE_128KB] = 131072,
	};
	u32 major = table->version >> 16, minor = table->version & 0xffff;

	if (!(major == 1 && minor >= 2) && major != 2)
		return 0;
	if (table->page_size >= ARRAY_SIZE(sizes))
		return 0;
	return sizes[table->page_size];
}

/*
 * How many physical runs the table contains. For a revocable pin, call this and
 * gdrdrv_pages_fill_runs() only while its free callback cannot finish: the table is freed after
 * that.
 */
int gdrdrv_pages_count_runs(const struct gdrdrv_pages *pages)
{
	const struct nvidia_p2p_page_table *table = pages->table;
	u64 entry_size = gdrdrv_table_entry_size(table);
	int nr_runs = 0;
	u32 i;

	if (!entry_size || entry_size % PAGE_SIZE)
		return -EPROTO;
	if (table->entries * entry_size < pages->length)
		return -EPROTO;

	for (i = 0; i < table->entries; i++) {
		u64 phys = table->pages[i]->physical_address;

		if (phys % PAGE_SIZE)
			return -EPROTO;
		if (!i || table->pages[i - 1]->physical_address + entry_size != phys)
			nr_runs++;
	}
	return nr_runs;
}

void gdrdrv_pages_fill_runs(struct gdrdrv_pages *pages)
{
	const struct nvidia_p2p_page_table *table = pages->table;
	u64 entry_size = gdrdrv_table_entry_size(table);
	struct gdrdrv_run *run = NULL;
	u64 at;
	u32 i;

	for (i = 0, at = 0; at < pages->length; i++, at += entry_size) {
		phys_addr_t phys = table->pages[i]->physical_address;
		u64 length = min(entry_size, pages->length - at);

		if (run && run->phys + run->length == phys) {
			run->length += length;
			continue;
		}
		run = run ? run + 1 : pages->runs;
		*run = (struct gdrdrv_run){.start = at, .length = length, .phys = phys};
	}
	pages->nr_runs = run - pages->runs + 1;
	pages->cacheable = gdrdrv_table_is_cacheable(table);
}

static void gdrdrv_runs_release_type(const struct gdrdrv_run *runs, unsigned int nr_runs)
{
	while (nr_runs--)
		arch_io_free_memtype_wc(runs[nr_runs].phys, runs[nr_runs].length);
}

static bool gdrdrv_run_hold_wc(const struct gdrdrv_run *run)
{
	if (arch_io_reserve_memtype_wc(run->phys, run->length))
		return false;
	if (gdrdrv_is_wc(run->phys))
		return true;
	arch_io_free_memtype_wc(run->phys, run->length);
	return false;
}

/*
 * Records the memory as write-combined. The kernel uses the recorded type of each page, or uncached
 * without a record, whatever protection the mapping requests. A refusal (another driver has
 * recorded a range differently) only costs speed: all runs are then mapped uncached.
 */
bool gdrdrv_pages_hold_type(const struct gdrdrv_pages *pages)
{
	unsigned int i;

	if (pages->cacheable || gdrdrv_must_use_device_type())
		return false;
	for (i = 0; i < pages->nr_runs; i++) {
		if (!gdrdrv_run_hold_wc(&pages->runs[i]))
			goto release;
	}
	return true;

release:
	gdrdrv_count(GDRDRV_COUNT_WC_REFUSED);
	gdrdrv_runs_release_type(pages->runs, i);
	return false;
}

void gdrdrv_pages_release_type(const struct gdrdrv_pages *pages)
{
	gdrdrv_runs_release_type(pages->runs, pages->nr_runs);
}

unsigned long gdrdrv_pages_pfn(const struct gdrdrv_pages *pages, u64 offset)
{
	unsigned int low = 0, high = pages->nr_runs;

	while (high - low > 1) {
		unsigned int middle = low + (high - low) / 2;

		if (pages->runs[middle].start <= offset)
			low = middle;
		else
			high = middle;
	}
	return (pages->runs[low].phys + (offset - pages->runs[low].start)) >> PAGE_SHIFT;
}
