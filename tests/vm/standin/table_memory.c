// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Memory for page tables: what was freed last is given out first, so that a table kept too long is
 * another pin's. Under KASAN memory is freed at once instead, and KASAN tells.
 */
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/vmalloc.h>

#include "standin.h"

struct table_memory {
	size_t size;
	u8 bytes[] __aligned(16);
};

#define KMALLOC_LIMIT 131072 /* the driver's own */

static DEFINE_SPINLOCK(last_freed_lock);
static struct table_memory *last_freed;

static struct table_memory *exchange_last_freed(struct table_memory *memory, size_t size)
{
	struct table_memory *before = NULL;

	spin_lock(&last_freed_lock);
	if (memory || (last_freed && last_freed->size == size)) {
		before = last_freed;
		last_freed = memory;
	}
	spin_unlock(&last_freed_lock);
	return before;
}

void *table_memory_alloc(size_t size)
{
	struct table_memory *memory = exchange_last_freed(NULL, size);

	if (!memory) {
		if (size > KMALLOC_LIMIT)
			memory = __vmalloc(sizeof(*memory) + size, GFP_KERNEL | __GFP_NOWARN);
		else
			memory = kmalloc(sizeof(*memory) + size, GFP_KERNEL);
	}
	if (!memory)
		return NULL;
	memory->size = size;
	return memory->bytes;
}

void table_memory_free(void *bytes)
{
	struct table_memory *memory = container_of(bytes, struct table_memory, bytes[0]);

	if (IS_ENABLED(CONFIG_KASAN))
		kvfree(memory);
	else
		kvfree(exchange_last_freed(memory, 0));
}

void table_memory_exit(void)
{
	kvfree(exchange_last_freed(NULL, last_freed ? last_freed->size : 0));
}
