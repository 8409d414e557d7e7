// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The memory of the BAR, or of the kernel's own, handed out in pages. */
#include <linux/bitmap.h>
#include <linux/err.h>
#include <linux/gfp.h>
#include <linux/io.h>
#include <linux/module.h>
#include <linux/sizes.h>
#include <linux/slab.h>

#include "standin.h"

#define CLEARED_AT_ONCE 256u
#define RAM_SIZE SZ_4M

static bool ram;
module_param(ram, bool, 0444);
MODULE_PARM_DESC(ram, "hand out RAM instead of the BAR, as a GPU does whose memory the CPU caches");

static struct {
	phys_addr_t start;
	u32 count;
	unsigned long *used;
	u64 last_id;
} bar;

int block_init(phys_addr_t start, u64 size)
{
	if (ram) {
		void *memory = alloc_pages_exact(RAM_SIZE, GFP_KERNEL);

		if (!memory)
			return -ENOMEM;
		start = virt_to_phys(memory);
		size = RAM_SIZE;
	}
	bar.used = bitmap_zalloc(size / GPUSTANDIN_PAGE, GFP_KERNEL);
	if (!bar.used) {
		if (ram)
			free_pages_exact(phys_to_virt(start), RAM_SIZE);
		return -ENOMEM;
	}
	bar.start = start;
	bar.count = size / GPUSTANDIN_PAGE;
	return 0;
}

void block_exit(void)
{
	WARN(!bitmap_empty(bar.used, bar.count), "GPU memory leaked");
	bitmap_free(bar.used);
	if (ram)
		free_pages_exact(phys_to_virt(bar.start), RAM_SIZE);
}

static phys_addr_t page_physical(u32 page)
{
	return bar.start + (phys_addr_t)page * GPUSTANDIN_PAGE;
}

phys_addr_t block_physical(const struct block *block, u32 page)
{
	return page_physical(block->pages[page]);
}

/* Mapped for this moment only: which memory type others map the pages with is theirs to say. */
static int clear_run(u32 page, u32 count)
{
	size_t size = (size_t)count * GPUSTANDIN_PAGE;
	void __iomem *memory;

	if (ram) {
		memset(phys_to_virt(page_physical(page)), 0, size);
		return 0;
	}
	memory = ioremap_wc(page_physical(page), size);
	if (!memory)
		return -ENOMEM;
	memset_io(memory, 0, size);
	iounmap(memory);
	return 0;
}

/* In few mappings: a debug kernel takes milliseconds for each. */
static int block_clear(const struct block *block)
{
	u32 first, count;

	for (first = 0; first < block->count; first += count) {
		const u32 *run = &block->pages[first];
		u32 most = min(block->count - first, CLEARED_AT_ONCE);
		int ret;

		for (count = 1; count < most && run[count] == run[0] + count;)
			count++;
		ret = clear_run(run[0], count);
		if (ret)
			return ret;
	}
	return 0;
}

/* Downwards from the end for a scattered block, so that each page is a physical run of its own. */
static u32 find_free(bool scattered)
{
	u32 page;

	if (!scattered)
		return find_first_zero_bit(bar.used, bar.count);
	for (page = bar.count; page-- && test_bit(page, bar.used);)
		;
	return page;
}

struct block *block_create(const struct gpustandin_block *wanted)
{
	u64 count = wanted->size / GPUSTANDIN_PAGE;
	struct block *block;
	int ret;

	if (count > bar.count - bitmap_weight(bar.used, bar.count))
		return ERR_PTR(-ENOMEM);
	block = kvzalloc(struct_size(block, pages, count), GFP_KERNEL);
	if (!block)
		return ERR_PTR(-ENOMEM);
	block->references = 1;
	block->ordinal = wanted->ordinal;
	block->id = ++bar.last_id;
	stats.blocks++;
	while (block->count < count) {
		u32 page = find_free(wanted->flags & GPUSTANDIN_SCATTERED);

		set_bit(page, bar.used);
		block->pages[block->count++] = page;
		stats.block_pages++;
	}
	ret = block_clear(block);
	if (ret) {
		block_put(block);
		return ERR_PTR(ret);
	}
	return block;
}

void block_put(struct block *block)
{
	u32 i;

	if (--block->references)
		return;
	for (i = 0; i < block->count; i++)
		clear_bit(block->pages[i], bar.used);
	stats.block_pages -= block->count;
	stats.blocks--;
	kvfree(block);
}
