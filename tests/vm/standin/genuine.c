// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * What NVIDIA's own nv-p2p.c, linked beside this, calls: its resource manager and the services of
 * its operating system layer. Each has the types of the drivers 535 and 550.
 */
#include <linux/kernel.h>
#include <linux/semaphore.h>
#include <linux/slab.h>

#include "standin.h"

#define UUID_SIZE 16
#define PAGE_ENTRY_SIZE 64 /* at least sizeof(struct nvidia_p2p_page) */
#define STACK_SIZE 32768   /* at least that of its alternative stacks */

/* Which it defines elsewhere. */
void *nvidia_p2p_page_t_cache;
void *nvidia_stack_t_cache;
struct semaphore nv_linux_devices_lock;
void *nv_linux_devices;

int p2p_init(void)
{
	nvidia_p2p_page_t_cache =
		kmem_cache_create("standin_p2p_page", PAGE_ENTRY_SIZE, 0, 0, NULL);
	nvidia_stack_t_cache = kmem_cache_create("standin_stack", STACK_SIZE, 16, 0, NULL);
	if (nvidia_p2p_page_t_cache && nvidia_stack_t_cache)
		return 0;
	p2p_exit();
	return -ENOMEM;
}

void p2p_exit(void)
{
	kmem_cache_destroy(nvidia_p2p_page_t_cache);
	kmem_cache_destroy(nvidia_stack_t_cache);
}

void p2p_free_lost(void *key)
{
	nv_p2p_free_platform_data(key);
}

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

u32 os_alloc_mem(void **address, u64 size)
{
	*address = table_memory_alloc(size);
	return *address ? NV_OK : NV_ERR_NO_MEMORY;
}

void os_free_mem(void *address)
{
	if (address)
		table_memory_free(address);
}

void *os_mem_copy(void *to, const void *from, u32 size)
{
	return memcpy(to, from, size);
}

/* Calls take a stack from a cache, as on x86: that is why a put may have no memory. */
u8 rm_is_altstack_in_use(void)
{
	return 1;
}

int nvidia_dev_get_uuid(const u8 *uuid, void *stack)
{
	return 0;
}

void nvidia_dev_put_uuid(const u8 *uuid, void *stack)
{
}

static u32 new_uuid(u32 ordinal, u8 **uuid)
{
	u32 status = os_alloc_mem((void **)uuid, UUID_SIZE);

	if (status == NV_OK) {
		memset(*uuid, 0, UUID_SIZE);
		(*uuid)[0] = ordinal;
	}
	return status;
}

u32 rm_p2p_get_gpu_info(void *stack, u64 address, u64 length, u8 **uuid, void **info)
{
	u32 ordinal;
	u32 status = rm_find(address, length, &ordinal);

	return status == NV_OK ? new_uuid(ordinal, uuid) : status;
}

u32 rm_p2p_get_pages(void *stack, u64 token, u32 va_space, u64 address, u64 length, u64 *physical,
		     u32 *wreqmb, u32 *rreqmb, u32 *entries, u8 **uuid, void *key)
{
	const struct rm_get get = {
		.token = token, .address = address, .length = length, .key = key};
	u32 status = rm_p2p_get_gpu_info(stack, address, length, uuid, NULL);

	if (status != NV_OK)
		return status;
	status = rm_get_pages(&get, physical);
	if (status != NV_OK) {
		os_free_mem(*uuid);
		*uuid = NULL;
		return status;
	}
	*entries = length / GPUSTANDIN_PAGE;
	memset(wreqmb, 0, *entries * sizeof(*wreqmb));
	memset(rreqmb, 0, *entries * sizeof(*rreqmb));
	return NV_OK;
}

u32 rm_p2p_get_pages_persistent(void *stack, u64 address, u64 length, void **private, u64 *physical,
				u32 *entries, void *key, void *info)
{
	const struct rm_get get = {
		.address = address, .length = length, .persistent = true, .key = key};
	u32 status = rm_get_pages(&get, physical);

	*entries = length / GPUSTANDIN_PAGE;
	return status;
}

u32 rm_p2p_register_callback(void *stack, u64 token, u64 address, u64 length, void *key,
			     void (*callback)(void *), void *data)
{
	return rm_register_callback(key, callback, data);
}

u32 rm_p2p_put_pages(void *stack, u64 token, u32 va_space, u64 address, void *key)
{
	return rm_put_pages(token, key);
}

u32 rm_p2p_put_pages_persistent(void *stack, void *private, void *key)
{
	return rm_put_pages_persistent(key);
}

/* What gdrdrv asks nothing of: DMA to peers, and POWER's coherent memory. */
u32 not_called(void)
{
	WARN_ONCE(1, "DMA of a peer was asked for");
	return NV_ERR_NOT_SUPPORTED;
}

#define NOT_CALLED(name) __alias(not_called) u32 name(void)
NOT_CALLED(nv_dma_unmap_alloc);
NOT_CALLED(nv_dma_unmap_peer);
NOT_CALLED(nv_get_ibmnpu_chip_id);
NOT_CALLED(nv_get_ibmnpu_genreg_info);
NOT_CALLED(nv_register_rsync_driver);
NOT_CALLED(nv_unregister_rsync_driver);
NOT_CALLED(rm_p2p_dma_map_pages);
