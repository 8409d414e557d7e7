/* SPDX-License-Identifier: MIT */
/* Mappings of allocations at reserved addresses, and which devices may access them. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "access.h"
#include "address.h"
#include "allocation.h"
#include "range.h"

CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset,
		  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	API(cuMemMap, NEEDS_INIT);
	struct reservation *reservation;
	struct range *range;
	CUresult result;
	struct allocation *allocation = allocation_get(handle);

	REQUIRE(pointer && size && !flags && allocation);
	if (!allocation->block->device)
		return CUDA_ERROR_INVALID_DEVICE;
	/* A driver maps an allocation as a whole or not at all. */
	if (offset || size != allocation->block->backing.size)
		return CUDA_ERROR_NOT_SUPPORTED;
	reservation = reservation_at(pointer);
	REQUIRE(reservation && pointer % SIM_GRANULARITY == 0 &&
		pointer + size <= reservation->start + reservation->size &&
		!range_overlaps(pointer, size));

	range = range_new(RANGE_MAPPED, pointer, size);
	if (!range)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = backing_map(&allocation->block->backing, pointer, PROT_NONE);
	if (result != CUDA_SUCCESS) {
		range_drop(range);
		return result;
	}
	range->block = allocation->block;
	range->allocation = allocation;
	allocation->mappings++;
	return CUDA_SUCCESS;
}

/* Whether each mapping is wholly inside or wholly outside. */
static bool splits_no_mapping(uint64_t start, uint64_t end)
{
	struct range *first = range_at(start);
	struct range *last = range_at(end);

	return (!first || first->start == start) && (!last || last->start == end);
}

static void unmap(struct range *range)
{
	struct allocation *allocation = range->allocation;

	backing_unmap(&range->block->backing, range->start);
	address_clear(range->start, range->size);
	range_drop(range);
	allocation->mappings--;
	allocation_put(allocation);
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t size)
{
	API(cuMemUnmap, NEEDS_INIT);
	struct reservation *reservation;
	struct range *range;
	uint64_t end = pointer + size;

	REQUIRE(size && pointer % SIM_GRANULARITY == 0 && size % SIM_GRANULARITY == 0);
	access_drain(pointer, size);
	reservation = reservation_at(pointer);
	REQUIRE(reservation && size <= reservation->start + reservation->size - pointer &&
		splits_no_mapping(pointer, end));
	/* Holes are allowed. */
	while ((range = range_next(pointer)) && range->start < end)
		unmap(range);
	return CUDA_SUCCESS;
}

static bool covers_whole_mappings(uint64_t start, uint64_t size)
{
	uint64_t end = start + size;

	while (start < end) {
		struct range *range = range_starting(start, RANGE_MAPPED);

		if (!range)
			return false;
		start = range_end(range);
	}
	return start == end;
}

/* The program has the access rights of all devices together. */
static void protect(const struct range *range)
{
	unsigned int rights = 0;
	int protection = PROT_NONE;

	for (int i = 0; i < sim.device_count; i++)
		rights |= range->access[i];
	if (rights)
		protection = rights == CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ
								     : PROT_READ | PROT_WRITE;
	if (mprotect((void *)(uintptr_t)range->start, range->size, protection))
		abort();
}

static bool valid_access(const CUmemAccessDesc *access)
{
	return access->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
	       device_get(access->location.id) &&
	       (access->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ||
		access->flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
		access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

/* Whether every device that gets access can reach the memory. */
static bool reach(const struct range *range, const CUmemAccessDesc *accesses, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (accesses[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
		    accesses[i].location.id != range->block->device->ordinal && !sim.peers)
			return false;
	return true;
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t size, const CUmemAccessDesc *accesses,
			size_t count)
{
	API(cuMemSetAccess, NEEDS_INIT);
	struct range *range;

	REQUIRE(size && accesses && count);
	for (size_t i = 0; i < count; i++)
		REQUIRE(valid_access(&accesses[i]));
	access_drain(pointer, size);
	REQUIRE(covers_whole_mappings(pointer, size));

	for (uint64_t at = pointer; at < pointer + size; at = range_end(range)) {
		range = range_at(at);
		if (!reach(range, accesses, count))
			return CUDA_ERROR_INVALID_DEVICE;
	}
	for (uint64_t at = pointer; at < pointer + size; at = range_end(range)) {
		range = range_at(at);
		for (size_t i = 0; i < count; i++)
			range->access[accesses[i].location.id] = (unsigned char)accesses[i].flags;
		protect(range);
	}
	return CUDA_SUCCESS;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
			CUdeviceptr pointer)
{
	API(cuMemGetAccess, NEEDS_INIT);
	struct range *range;

	REQUIRE(flags && location);
	if (location->type != CU_MEM_LOCATION_TYPE_DEVICE || !device_get(location->id))
		return CUDA_ERROR_INVALID_DEVICE;
	range = range_at(pointer);
	REQUIRE(range && range->kind == RANGE_MAPPED);
	*flags = range->access[location->id];
	return CUDA_SUCCESS;
}
