/* SPDX-License-Identifier: MIT */
#include "dma.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi.h"
#include "control.h"
#include "machine.h"

/* Below 1 TiB, which is all that a ring's entry can name. */
#define ADDRESS_BASE 0x120000000u
#define ADDRESS_LIMIT (1ull << 40)
#define HUGE_PAGE (2ull << 20)

struct dma_mapping {
	struct dma_mapping *next;
	uint32_t address_space;
	uint32_t dma;
	uint32_t memory;
	uint64_t address;
	uint64_t length;
	char *bytes;
	bool read_only;
};

static uint64_t next_address = ADDRESS_BASE;

static bool overlaps(const struct device *device, uint64_t address, uint64_t length)
{
	for (struct dma_mapping *one = device->dma_mappings; one; one = one->next)
		if (one->address < address + length && address < one->address + one->length)
			return true;
	return false;
}

/* 0 when all is taken. A hole of a huge page stays behind each range. */
static uint64_t choose_address(const struct device *device, uint64_t length)
{
	uint64_t room = (length + 2 * HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);

	for (int round = 0; round < 2; round++) {
		for (; next_address + room <= ADDRESS_LIMIT; next_address += HUGE_PAGE)
			if (!overlaps(device, next_address, room)) {
				next_address += room;
				return next_address - room;
			}
		next_address = ADDRESS_BASE;
	}
	return 0;
}

static uint32_t check_flags(const struct memory *memory, const char *call)
{
	uint32_t snoop = memory->kind == MEMORY_USER ? RM_MAP_DMA_SNOOP : 0;

	if ((get32(call, FACT_AT_MAP_DMA_FLAGS) & ~RM_MAP_DMA_READ_ONLY) != snoop)
		return RM_INVALID_FLAGS;
	if (memory->read_only && !(get32(call, FACT_AT_MAP_DMA_FLAGS) & RM_MAP_DMA_READ_ONLY))
		return RM_INVALID_ARGUMENT;
	if (fact(FACT_AT_MAP_DMA_FLAGS2) != FACT_ABSENT &&
	    (get32(call, FACT_AT_MAP_DMA_FLAGS2) || get32(call, FACT_AT_MAP_DMA_KIND)))
		return RM_INVALID_FLAGS;
	return RM_OK;
}

uint32_t serve_map_dma(const struct open_node *node, void *argument)
{
	char *call = argument;
	struct client *client = rm_client_on(node, get32(call, FACT_AT_MAP_DMA_CLIENT));
	struct device *device = NULL, *parent = NULL;
	uint64_t offset = get64(call, FACT_AT_MAP_DMA_OFFSET);
	uint64_t length = get64(call, FACT_AT_MAP_DMA_LENGTH), page = getpagesize();
	struct dma_mapping *mapping;
	struct object *object;
	struct part *dma;

	if (!client)
		return RM_INVALID_CLIENT;
	dma = part_find(client, get32(call, FACT_AT_MAP_DMA_DMA), PART_VIRTUAL, &device);
	object = object_find(client, get32(call, FACT_AT_MAP_DMA_MEMORY), &parent);
	if (!dma || !object || object->memory.kind == MEMORY_USERMODE)
		return RM_OBJECT_NOT_FOUND;
	if (parent != device || get32(call, FACT_AT_MAP_DMA_DEVICE) != device->handle)
		return RM_INVALID_OBJECT_PARENT;
	TRY(check_flags(&object->memory, call));
	if (offset % page || offset > object->memory.size || length > object->memory.size - offset)
		return RM_INVALID_BASE;
	if (!length)
		return RM_INVALID_LIMIT;
	if (get64(call, FACT_AT_MAP_DMA_ADDRESS))
		return RM_INVALID_ARGUMENT;
	mapping = calloc(1, sizeof(*mapping));
	if (!mapping)
		return RM_NO_MEMORY;
	*mapping = (struct dma_mapping){
		.next = device->dma_mappings,
		.address_space = dma->address_space,
		.dma = dma->handle,
		.memory = object->handle,
		.address = choose_address(device, length),
		.length = length,
		.bytes = (char *)object->memory.hold + offset,
		.read_only = get32(call, FACT_AT_MAP_DMA_FLAGS) & RM_MAP_DMA_READ_ONLY,
	};
	if (!mapping->address) {
		free(mapping);
		return RM_NO_MEMORY;
	}
	device->dma_mappings = mapping;
	memcpy(call + fact(FACT_AT_MAP_DMA_ADDRESS), &mapping->address, sizeof(uint64_t));
	return RM_OK;
}

static bool forget(struct device *device, uint32_t dma, uint32_t memory, uint64_t address)
{
	struct dma_mapping **link = &device->dma_mappings;
	bool found = false;

	while (*link) {
		struct dma_mapping *one = *link;

		if ((dma && one->dma != dma) || (memory && one->memory != memory) ||
		    (address && one->address != address)) {
			link = &one->next;
			continue;
		}
		*link = one->next;
		free(one);
		found = true;
	}
	return found;
}

uint32_t serve_unmap_dma(const struct open_node *node, void *argument)
{
	const char *call = argument;
	struct client *client = rm_client_on(node, get32(call, FACT_AT_UNMAP_DMA_CLIENT));
	uint32_t memory = get32(call, FACT_AT_UNMAP_DMA_MEMORY);
	uint64_t address = get64(call, FACT_AT_UNMAP_DMA_ADDRESS);
	struct device *device = NULL;
	struct part *dma;

	if (!client)
		return RM_INVALID_CLIENT;
	dma = part_find(client, get32(call, FACT_AT_UNMAP_DMA_DMA), PART_VIRTUAL, &device);
	if (!dma)
		return RM_OBJECT_NOT_FOUND;
	if (get32(call, FACT_AT_UNMAP_DMA_DEVICE) != device->handle)
		return RM_INVALID_OBJECT_PARENT;
	if (get32(call, FACT_AT_UNMAP_DMA_FLAGS))
		return RM_INVALID_FLAGS;
	/* Stricter than the driver, which can unmap a part. */
	if (fact(FACT_AT_UNMAP_DMA_SIZE) != FACT_ABSENT && get64(call, FACT_AT_UNMAP_DMA_SIZE))
		return RM_INVALID_ARGUMENT;
	if (!memory || !address || !forget(device, dma->handle, memory, address))
		return RM_OBJECT_NOT_FOUND;
	return RM_OK;
}

void *dma_translate(const struct device *device, uint32_t address_space, uint64_t address,
		    bool write, uint64_t *size)
{
	for (struct dma_mapping *one = device->dma_mappings; one; one = one->next) {
		if (one->address_space != address_space || address < one->address ||
		    address - one->address >= one->length || (write && one->read_only))
			continue;
		if (*size > one->length - (address - one->address))
			*size = one->length - (address - one->address);
		return one->bytes + (address - one->address);
	}
	return NULL;
}

void dma_forget_memory(struct device *device, uint32_t memory)
{
	forget(device, 0, memory, 0);
}

void dma_forget_virtual(struct device *device, uint32_t dma)
{
	forget(device, dma, 0, 0);
}

int dma_count(const struct device *device)
{
	int count = 0;

	for (struct dma_mapping *one = device->dma_mappings; one; one = one->next)
		count++;
	return count;
}
