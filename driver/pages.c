// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The memory behind a pin: had from nvidia.ko, and recorded as write-combined. */
#include <linux/err.h>
#include <linux/io.h>
#include <linux/slab.h>

#include "gdrdrv.h"

/* nvidia.ko's own "not supported", which no user space knows. */
#define NVIDIA_ENOTSUPP 524

bool gdrdrv_force_pcie_supported(void)
{
#if defined(GDRDRV_NVIDIA_HEADER) && !defined(NVIDIA_P2P_FLAGS_FORCE_BAR1_MAPPING)
	return false;
#else
	return true;
#endif
}

int gdrdrv_pages_get(struct gdrdrv_pages *pages, void (*free_callback)(void *data), void *data)
{
	int ret;

	if (pages->persistent)
		ret = nvidia_p2p_get_pages_persistent(pages->va, pages->length, &pages->table,
						      pages->p2p_flags);
	else
		ret = nvidia_p2p_get_pages(pages->token, pages->va_space, pages->va, pages->length,
					   &pages->table, free_callback, data);
	return ret == -NVIDIA_ENOTSUPP ? -EOPNOTSUPP : ret;
}

/* Right also after the free callback: nvidia.ko finds nothing, and waits if it is still running. */
void gdrdrv_pages_put(struct gdrdrv_pages *pages)
{
	if (pages->persistent)
		nvidia_p2p_put_pages_persistent(pages->va, pages->table, 0);
	else
		nvidia_p2p_put_pages(pages->token, pages->va_space, pages->va, pages->table);
}

static bool gdrdrv_table_is_cacheable(const struct nvidia_p2p_page_table *table)
{
#if defined(GDRDRV_NVIDIA_HEADER) && NVIDIA_P2P_PAGE_TABLE_VERSION < 0x00020000
	return false;
#else
	return table->version >> 16 >= 2 && table->flags & GDRDRV_P2P_PAGE_TABLE_CPU_CACHEABLE;
#endif
}

/* How many bytes each entry stands for; 0 for a table that this module does not understand. */
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

static bool gdrdrv_run_continues(const struct gdrdrv_run *run, phys_addr_t phys)
{
	return run->phys + run->length == phys;
}

/* Reads the table; for a revocable pin, only while its free callback cannot finish. */
int gdrdrv_pages_decode(struct gdrdrv_pages *pages)
{
	const struct nvidia_p2p_page_table *table = pages->table;
	u64 entry_size = gdrdrv_table_entry_size(table);
	struct gdrdrv_run *runs, *run = NULL;
	unsigned int nr_runs = 0;
	u64 at;
	u32 i;

	if (!entry_size || entry_size % PAGE_SIZE)
		return -EPROTO;
	if (table->entries * entry_size < pages->length)
		return -EPROTO;

	for (i = 0; i < table->entries; i++) {
		phys_addr_t phys = table->pages[i]->physical_address;

		if (phys % PAGE_SIZE)
			return -EPROTO;
		if (!i || table->pages[i - 1]->physical_address + entry_size != phys)
			nr_runs++;
	}

	runs = kvmalloc_array(nr_runs, sizeof(*runs), GFP_KERNEL_ACCOUNT);
	if (!runs)
		return -ENOMEM;

	for (i = 0, at = 0; at < pages->length; i++, at += entry_size) {
		phys_addr_t phys = table->pages[i]->physical_address;
		u64 length = min(entry_size, pages->length - at);

		if (run && gdrdrv_run_continues(run, phys)) {
			run->length += length;
			continue;
		}
		run = run ? run + 1 : runs;
		*run = (struct gdrdrv_run){.start = at, .length = length, .phys = phys};
	}

	pages->runs = runs;
	pages->nr_runs = run - runs + 1;
	pages->cacheable = gdrdrv_table_is_cacheable(table);
	return 0;
}

/*
 * Without this the kernel takes for each page the type that is recorded for it, and nothing
 * recorded means uncached, whatever protection the mapping asks for. A refusal (somebody else holds
 * the range otherwise) costs speed only.
 */
void gdrdrv_pages_hold_type(struct gdrdrv_pages *pages)
{
	for (; pages->nr_held < pages->nr_runs; pages->nr_held++) {
		const struct gdrdrv_run *run = &pages->runs[pages->nr_held];

		if (arch_io_reserve_memtype_wc(run->phys, run->length)) {
			gdrdrv_count(GDRDRV_COUNT_WC_REFUSED);
			return;
		}
	}
}

void gdrdrv_pages_release(struct gdrdrv_pages *pages)
{
	while (pages->nr_held) {
		const struct gdrdrv_run *run = &pages->runs[--pages->nr_held];

		arch_io_free_memtype_wc(run->phys, run->length);
	}
	kvfree(pages->runs);
	pages->runs = NULL;
	pages->nr_runs = 0;
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
