// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The peer-to-peer interface of nvidia.ko, with its rules. */
#include <linux/export.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/wait.h>

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

struct pin {
	struct list_head list;
	const struct registration *registration; /* NULL: persistent */
	struct block *block;
	u64 address;
	struct nvidia_p2p_page_table *table;
	void (*callback)(void *data);
	void *data;
};

static LIST_HEAD(pins);
static int next_error;
static u32 hold;
static DECLARE_WAIT_QUEUE_HEAD(let_go);

void p2p_fail_next(int error)
{
	next_error = error;
}

int p2p_hold_callbacks(u32 wanted)
{
	if (wanted > 1)
		return -EINVAL;
	WRITE_ONCE(hold, wanted);
	wake_up_all(&let_go);
	return 0;
}

static void table_free(struct nvidia_p2p_page_table *table)
{
	kfree(table->gpu_uuid);
	kvfree(table->pages);
	kfree(table);
}

/* Before version 2.0 the table ends where the flags would be. */
static struct nvidia_p2p_page_table *table_new(const struct block *block, u32 first, u32 count)
{
	size_t size = table_version >= VERSION_WITH_FLAGS
			      ? sizeof(struct nvidia_p2p_page_table)
			      : offsetof(struct nvidia_p2p_page_table, flags);
	struct nvidia_p2p_page_table *table = kzalloc(size, GFP_KERNEL);
	struct nvidia_p2p_page *pages;
	u32 i;

	if (!table)
		return NULL;
	table->gpu_uuid = kzalloc(UUID_SIZE, GFP_KERNEL);
	/* The pages lie behind the pointers to them. */
	table->pages = kvzalloc(array_size(count, sizeof(*pages) + sizeof(pages)), GFP_KERNEL);
	if (!table->gpu_uuid || !table->pages) {
		table_free(table);
		return NULL;
	}
	table->version = table_version;
	table->page_size = NVIDIA_P2P_PAGE_SIZE_64KB;
	table->entries = count;
	table->gpu_uuid[0] = block->ordinal;
	if (table_version >= VERSION_WITH_FLAGS)
		table->flags = table_flags;
	pages = (void *)&table->pages[count];
	for (i = 0; i < count; i++) {
		pages[i].physical_address = block_physical(block, first + i);
		table->pages[i] = &pages[i];
	}
	return table;
}

static void count_pin(const struct pin *pin, int sign)
{
	stats.pinned_pages += sign * (int)pin->table->entries;
	if (pin->registration)
		stats.pins += sign;
	else
		stats.persistent_pins += sign;
}

static void pin_free(struct pin *pin)
{
	list_del(&pin->list);
	count_pin(pin, -1);
	table_free(pin->table);
	block_put(pin->block);
	kfree(pin);
}

static int pin_new(u64 address, u64 length, bool persistent, struct pin **result)
{
	struct registration *registration;
	struct pin *pin;
	u32 first;

	if (!length || address % GPUSTANDIN_PAGE || length % GPUSTANDIN_PAGE)
		return -EINVAL;
	if (next_error) {
		int error = -next_error;

		next_error = 0;
		return error;
	}
	registration = registration_find(address, length);
	if (!registration)
		return -EINVAL;
	pin = kzalloc(sizeof(*pin), GFP_KERNEL);
	if (!pin)
		return -ENOMEM;
	first = (address - registration->address) / GPUSTANDIN_PAGE;
	pin->table = table_new(registration->block, first, length / GPUSTANDIN_PAGE);
	if (!pin->table) {
		kfree(pin);
		return -ENOMEM;
	}
	pin->block = registration->block;
	pin->block->references++;
	pin->address = address;
	pin->registration = persistent ? NULL : registration;
	list_add(&pin->list, &pins);
	count_pin(pin, 1);
	*result = pin;
	return 0;
}

/* The driver's lock is held, as the real one's is, from before the callback to after the release.
 */
void p2p_revoke(const struct registration *registration)
{
	struct pin *pin, *next;

	list_for_each_entry_safe(pin, next, &pins, list) {
		if (pin->registration != registration)
			continue;
		stats.held_callbacks++;
		WARN(!wait_event_timeout(let_go, !READ_ONCE(hold), 30 * HZ), "nobody let go");
		stats.held_callbacks--;
		pin->callback(pin->data);
		stats.callbacks++;
		pin_free(pin);
	}
}

int nvidia_p2p_get_pages(u64 p2p_token, u32 va_space, u64 address, u64 length,
			 struct nvidia_p2p_page_table **table, void (*callback)(void *), void *data)
{
	struct pin *pin;
	int ret;

	if (!table || !callback)
		return -EINVAL;
	if (!standin_lock())
		return -EDEADLK;
	ret = pin_new(address, length, false, &pin);
	if (!ret) {
		pin->callback = callback;
		pin->data = data;
		*table = pin->table;
	}
	standin_unlock();
	return ret;
}
EXPORT_SYMBOL(nvidia_p2p_get_pages);

int nvidia_p2p_get_pages_persistent(u64 address, u64 length, struct nvidia_p2p_page_table **table,
				    u32 flags)
{
	struct pin *pin;
	int ret;

	if (!table || flags & ~(force_bar1 ? FORCE_BAR1 : 0))
		return -EINVAL;
	if (!standin_lock())
		return -EDEADLK;
	ret = pin_new(address, length, true, &pin);
	if (!ret) {
		stats.forced_bar1_pins += flags & FORCE_BAR1;
		*table = pin->table;
	}
	standin_unlock();
	return ret;
}
EXPORT_SYMBOL(nvidia_p2p_get_pages_persistent);

/* -ENOENT: there is no such table. */
static int put(u64 address, const struct nvidia_p2p_page_table *table, bool persistent)
{
	struct pin *pin;

	list_for_each_entry(pin, &pins, list) {
		if (pin->table != table)
			continue;
		if (pin->address != address || persistent == !!pin->registration)
			return -EINVAL;
		pin_free(pin);
		return 0;
	}
	return -ENOENT;
}

/* Pages that a callback has taken away are no longer there to put, which is no error. */
int nvidia_p2p_put_pages(u64 p2p_token, u32 va_space, u64 address,
			 struct nvidia_p2p_page_table *table)
{
	int ret;

	if (!table)
		return -EINVAL;
	if (!standin_lock())
		return -EDEADLK;
	ret = put(address, table, false);
	if (ret == -ENOENT) {
		stats.late_puts++;
		ret = 0;
	}
	standin_unlock();
	return ret;
}
EXPORT_SYMBOL(nvidia_p2p_put_pages);

int nvidia_p2p_put_pages_persistent(u64 address, struct nvidia_p2p_page_table *table, u32 flags)
{
	int ret;

	if (!table || flags)
		return -EINVAL;
	if (!standin_lock())
		return -EDEADLK;
	ret = put(address, table, true);
	standin_unlock();
	return ret == -ENOENT ? -EINVAL : ret;
}
EXPORT_SYMBOL(nvidia_p2p_put_pages_persistent);

/* A table goes with its pages: nothing is left to do here. */
int nvidia_p2p_free_page_table(struct nvidia_p2p_page_table *table)
{
	return table ? 0 : -EINVAL;
}
EXPORT_SYMBOL(nvidia_p2p_free_page_table);
