/* SPDX-License-Identifier: MIT */
#include "access.h"

#include "address.h"
#include "range.h"

static struct access *running;

static CUresult check_mapped(const struct range *range, const struct device *device,
			     struct span span, unsigned int rights)
{
	uint64_t end = span.start + span.size;

	/* One copy may span any number of adjacent mappings. */
	while ((range->access[device->ordinal] & rights) == rights) {
		uint64_t next = range_end(range);

		if (next >= end)
			return CUDA_SUCCESS;
		range = range_starting(next, RANGE_MAPPED);
		if (!range)
			break;
	}
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult access_check(const struct device *device, struct span span, unsigned int rights,
		      bool pageable)
{
	const struct range *range;

	if (!span.size)
		return CUDA_SUCCESS;
	REQUIRE(span.start && span.start + span.size >= span.start);

	range = range_at(span.start);
	if (!range)
		return pageable && !reservation_at(span.start) ? CUDA_SUCCESS
							       : CUDA_ERROR_INVALID_VALUE;
	if (range->kind == RANGE_MAPPED)
		return check_mapped(range, device, span, rights);

	return span.start + span.size <= range_end(range) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void access_begin(struct access *access)
{
	access->next = running;
	running = access;
}

void access_end(struct access *access)
{
	struct access **link = &running;

	while (*link != access)
		link = &(*link)->next;
	*link = access->next;
	pthread_cond_broadcast(&sim.changed);
}

static bool overlaps(struct span span, uint64_t start, uint64_t size)
{
	return span.start < start + size && start < span.start + span.size;
}

static bool is_touched(uint64_t start, uint64_t size)
{
	for (const struct access *access = running; access; access = access->next)
		if (overlaps(access->destination, start, size) ||
		    overlaps(access->source, start, size))
			return true;
	return false;
}

void access_drain(uint64_t start, uint64_t size)
{
	while (is_touched(start, size))
		pthread_cond_wait(&sim.changed, &sim.lock);
}
