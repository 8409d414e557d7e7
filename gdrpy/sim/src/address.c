/* SPDX-License-Identifier: MIT */
#include "address.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

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
