/* SPDX-License-Identifier: MIT */
#include "address.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "range.h"
#include "table.h"

/*
 * Seen with driver 580 on an H100 and an H200: reservations of 26 MiB or more lie at low addresses,
 * and may be at any free multiple of 32 MiB. Those of 24 MiB or less lie at high ones once the
 * process has a context, and only a wish for a place that CUDA has chosen before is granted. Other
 * wishes are ignored.
 */
#define LARGE ((uint64_t)26 << 20)
#define LARGE_UNIT ((uint64_t)32 << 20)
#define LOW UINT64_C(0x302000000)

#define FLAGS (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)

static uint64_t reserve_at(uint64_t wish, uint64_t size)
{
	void *start =
		mmap((void *)(uintptr_t)wish, size, PROT_NONE, FLAGS | MAP_FIXED_NOREPLACE, -1, 0);

	return start == MAP_FAILED ? 0 : (uintptr_t)start;
}

uint64_t address_reserve(uint64_t size, uint64_t alignment, uint64_t wish)
{
	uint64_t start, aligned;
	void *room;

	if (wish && wish % alignment == 0) {
		start = reserve_at(wish, size);
		if (start == wish)
			return start;
		if (start)
			address_release(start, size);
	}

	if (size + alignment < size)
		return 0;
	room = mmap(NULL, size + alignment, PROT_NONE, FLAGS, -1, 0);
	if (room == MAP_FAILED)
		return 0;
	start = (uintptr_t)room;
	aligned = (start + alignment - 1) & ~(alignment - 1);
	if (aligned > start)
		address_release(start, aligned - start);
	if (aligned < start + alignment)
		address_release(aligned + size, start + alignment - aligned);
	return aligned;
}

/* mmap and munmap fail only if the kernel cannot split a mapping; stale memory would remain. */
static void check(bool done)
{
	if (done)
		return;
	perror("gdrpy simulated GPU: cannot unmap");
	abort();
}

void address_clear(uint64_t start, uint64_t size)
{
	check(mmap((void *)(uintptr_t)start, size, PROT_NONE, FLAGS | MAP_FIXED, -1, 0) !=
	      MAP_FAILED);
}

void address_release(uint64_t start, uint64_t size)
{
	check(munmap((void *)(uintptr_t)start, size) == 0);
}

static struct table reservations;

struct reservation *reservation_at(uint64_t address)
{
	struct reservation *reservation = table_floor(&reservations, address);

	return reservation && address - reservation->start < reservation->size ? reservation : NULL;
}

/* Where the small reservations have been that did not wish for a place. */
static struct {
	uint64_t start, end;
} chosen = {UINT64_MAX, 0};

/* Where to try to reserve; 0 is anywhere. */
static uint64_t choose_place(uint64_t size, uint64_t alignment, uint64_t wish)
{
	const struct reservation *other;

	if (size < LARGE)
		return wish >= chosen.start && wish < chosen.end && size <= chosen.end - wish ? wish
											      : 0;
	if (wish && wish % LARGE_UNIT == 0)
		return wish;
	for (wish = LOW;; wish = other->start + other->size) {
		wish = (wish + alignment - 1) & ~(alignment - 1);
		other = table_floor(&reservations, wish + size - 1);
		if (!other || other->start + other->size <= wish)
			return wish;
	}
}

CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr wish,
			     unsigned long long flags)
{
	API(cuMemAddressReserve, NEEDS_INIT);
	struct reservation *reservation;
	uint64_t start;

	REQUIRE(pointer && size && size % SIM_GRANULARITY == 0 && !flags);
	REQUIRE(!(alignment & (alignment - 1)) && wish % SIM_GRANULARITY == 0);
	if (alignment < SIM_GRANULARITY)
		alignment = SIM_GRANULARITY;

	start = address_reserve(size, alignment, choose_place(size, alignment, wish));
	reservation = malloc(sizeof(*reservation));
	if (!start || !reservation || !table_insert(&reservations, start, reservation)) {
		free(reservation);
		if (start)
			address_release(start, size);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (size < LARGE && start != wish) {
		chosen.start = start < chosen.start ? start : chosen.start;
		chosen.end = start + size > chosen.end ? start + size : chosen.end;
	}
	*reservation = (struct reservation){start, size};
	*pointer = start;
	return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size)
{
	API(cuMemAddressFree, NEEDS_INIT);
	struct reservation *reservation = table_find(&reservations, pointer);

	REQUIRE(reservation && reservation->size == size && !range_overlaps(pointer, size));
	table_remove(&reservations, pointer);
	address_release(pointer, size);
	free(reservation);
	return CUDA_SUCCESS;
}
