// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The peer-to-peer interface of the drivers that no Debian package has: page tables of version 2.0,
 * cacheable memory, forced BAR1 mappings. It goes by the steps of NVIDIA's nv-p2p.c, in their
 * order, over the same resource manager.
 */
#include <linux/export.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "nv_p2p.h"
#include "standin.h"

#define VERSION_WITH_FLAGS 0x00020000
#define FORCE_BAR1 1u
#define UUID_SIZE 16

static uint table_version = VERSION_WITH_FLAGS;
module_param(table_version, uint, 0644);
MODULE_PARM_DESC(table_version, "0x20000 (the default), or 0x10002 as drivers up to 575");

static uint table_flags;
module_param(table_flags, uint, 0644);
MODULE_PARM_DESC(table_flags, "flags of page tables: 1 says that the CPU may cache the pages");

static bool force_bar1 = true;
module_param(force_bar1, bool, 0644);
MODULE_PARM_DESC(force_bar1, "know FORCE_BAR1_MAPPING, as drivers from 570 on");

static bool fail_put;
module_param(fail_put, bool, 0644);
MODULE_PARM_DESC(fail_put, "puts have no memory, as the driver's may");

/* What a table belongs to. */
struct mem_info {
	void (*callback)(void *data);
	void *data;
	struct nvidia_p2p_page_table table; /* last: before version 2.0 it ends before the flags */
};

static void table_free(struct nvidia_p2p_page_table *table)
{
	kfree(table->gpu_uuid);
	kvfree(table->pages);
	table_memory_free(container_of(table, struct mem_info, table));
}

int p2p_init(void)
{
	return 0;
}

void p2p_exit(void)
{
}

void p2p_free_lost(void *key)
{
	table_free(key);
}

static struct nvidia_p2p_page_table *table_alloc(void)
{
	size_t size = offsetof(struct mem_info, table) +
		      (table_version >= VERSION_WITH_FLAGS
			       ? sizeof(struct nvidia_p2p_page_table)
			       : offsetof(struct nvidia_p2p_page_table, flags));
	struct mem_info *info = table_memory_alloc(size);

	if (!info)
		return NULL;
	memset(info, 0, size);
	return &info->table;
}

static u32 table_fill(struct nvidia_p2p_page_table *table, const u64 *physical, u32 count,
		      u32 ordinal)
{
	struct nvidia_p2p_page *pages;
	u32 i;

	table->gpu_uuid = kzalloc(UUID_SIZE, GFP_KERNEL);
	/* The pages lie behind the pointers to them. */
	table->pages = kvzalloc(array_size(count, sizeof(*pages) + sizeof(pages)), GFP_KERNEL);
	if (!table->gpu_uuid || !table->pages)
		return NV_ERR_NO_MEMORY;

	table->gpu_uuid[0] = ordinal;
	table->version = table_version;
	table->page_size = NVIDIA_P2P_PAGE_SIZE_64KB;
	table->entries = count;
	if (table_version >= VERSION_WITH_FLAGS)
		table->flags = table_flags;
	pages = (void *)&table->pages[count];
	for (i = 0; i < count; i++) {
		pages[i].physical_address = physical[i];
		table->pages[i] = &pages[i];
	}
	return NV_OK;
}

/* A pin that the resource manager does not know any more was called back for, or never will be. */
static u32 put(u64 token, struct nvidia_p2p_page_table *table, bool persistent)
{
	u32 status = persistent ? rm_put_pages_persistent(table) : rm_put_pages(token, table);

	if (status == NV_OK)
		table_free(table);
	else if (!persistent && status == NV_ERR_OBJECT_NOT_FOUND)
		status = NV_OK;
	else
		WARN(1, "no such page table");
	return status;
}

static void called_back(void *data)
{
	struct mem_info *info = data;

	info->callback(info->data);
	table_free(&info->table);
}

/* As the genuine one it allocates by the length asked for before it looks at the address. */
static int get(struct rm_get *get, struct nvidia_p2p_page_table **table,
	       void (*callback)(void *data), void *data)
{
	u64 count = get->length / GPUSTANDIN_PAGE;
	u32 ordinal, status;
	u64 *physical;

	if (get->address % GPUSTANDIN_PAGE || get->length % GPUSTANDIN_PAGE)
		return -EINVAL;
	*table = table_alloc();
	physical =
		__vmalloc(array_size(count, 2 * sizeof(*physical)) ?: 1, GFP_KERNEL | __GFP_NOWARN);
	status = *table && physical ? NV_OK : NV_ERR_NO_MEMORY;
	get->key = *table;
	if (status == NV_OK)
		status = rm_find(get->address, get->length, &ordinal);
	if (status == NV_OK)
		status = rm_get_pages(get, physical);
	if (status != NV_OK) {
		if (*table)
			table_free(*table);
		goto free_physical;
	}

	status = table_fill(*table, physical, count, ordinal);
	if (status == NV_OK && callback) {
		struct mem_info *info = container_of(*table, struct mem_info, table);

		info->callback = callback;
		info->data = data;
		status = rm_register_callback(*table, called_back, info);
	}
	if (status != NV_OK)
		put(get->token, *table, get->persistent);

free_physical:
	vfree(physical);
	return rm_error(status);
}

int nvidia_p2p_get_pages(u64 p2p_token, u32 va_space, u64 address, u64 length,
			 struct nvidia_p2p_page_table **table, void (*callback)(void *), void *data)
{
	struct rm_get wanted = {.token = p2p_token, .address = address, .length = length};

	return callback ? get(&wanted, table, callback, data) : -EINVAL;
}
EXPORT_SYMBOL(nvidia_p2p_get_pages);

int nvidia_p2p_get_pages_persistent(u64 address, u64 length, struct nvidia_p2p_page_table **table,
				    u32 flags)
{
	struct rm_get wanted = {.address = address, .length = length, .persistent = true};
	int ret;

	if (flags & ~(force_bar1 ? FORCE_BAR1 : 0))
		return -EINVAL;
	ret = get(&wanted, table, NULL, NULL);
	if (!ret)
		stats.forced_bar1_pins += flags & FORCE_BAR1;
	return ret;
}
EXPORT_SYMBOL(nvidia_p2p_get_pages_persistent);

int nvidia_p2p_put_pages(u64 p2p_token, u32 va_space, u64 address,
			 struct nvidia_p2p_page_table *table)
{
	if (!table)
		return 0;
	if (fail_put)
		return -ENOMEM;
	return rm_error(put(p2p_token, table, false));
}
EXPORT_SYMBOL(nvidia_p2p_put_pages);

int nvidia_p2p_put_pages_persistent(u64 address, struct nvidia_p2p_page_table *table, u32 flags)
{
	if (flags)
		return -EINVAL;
	return table ? rm_error(put(0, table, true)) : 0;
}
EXPORT_SYMBOL(nvidia_p2p_put_pages_persistent);

/* A table goes with its pages: nothing is left to do here. */
int nvidia_p2p_free_page_table(struct nvidia_p2p_page_table *table)
{
	return 0;
}
EXPORT_SYMBOL(nvidia_p2p_free_page_table);
