/* SPDX-License-Identifier: MIT */
#include "range.h"

#include <stdlib.h>

#include "access.h"
#include "queue.h"
#include "table.h"

static struct table ranges;

uint64_t range_end(const struct range *range)
{
	return range->start + range->size;
}

bool range_is_host(const struct range *range)
{
	return range->kind == RANGE_HOST || range->kind == RANGE_REGISTERED;
}

struct range *range_new(enum range_kind kind, uint64_t start, uint64_t size)
{
	struct range *range = calloc(1, sizeof(*range));

	if (!range || !table_insert(&ranges, start, range)) {
		free(range);
		return NULL;
	}
	range->kind = kind;
	range->start = start;
	range->size = size;
	range->id = sim_next_id();
	return range;
}

void range_drop(struct range *range)
{
	table_remove(&ranges, range->start);
	free(range);
}

struct range *range_at(uint64_t address)
{
	struct range *range = table_floor(&ranges, address);

	return range && address < range_end(range) ? range : NULL;
}

struct range *range_starting(uint64_t address, enum range_kind kind)
{
	struct range *range = table_find(&ranges, address);

	return range && range->kind == kind ? range : NULL;
}

struct range *range_next(uint64_t address)
{
	size_t i = table_lower_bound(&ranges, address);

	return i < ranges.count ? ranges.entries[i].value : NULL;
}

bool range_overlaps(uint64_t start, uint64_t size)
{
	struct range *next = range_next(start);

	return range_at(start) || (next && next->start < start + size);
}

/* False if there is no such range, or if it was gone once its last copy had ended. */
static bool destroy(uint64_t start, enum range_kind kind)
{
	struct range *range = range_starting(start, kind);

	if (!range)
		return false;
	access_drain(start, range->size);
	range = range_starting(start, kind);
	if (!range)
		return false;
	range->destroy(range);
	range_drop(range);
	return true;
}

CUresult range_free(uint64_t start, enum range_kind kind)
{
	struct range *range = range_starting(start, kind);

	REQUIRE(range);
	TRY(queue_wait_context(range->context));
	return destroy(start, kind) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void range_free_all(struct context *context)
{
	for (size_t i = 0; i < ranges.count;) {
		struct range *range = ranges.entries[i].value;

		if (range->context == context) {
			destroy(range->start, range->kind);
			i = 0;
		} else {
			i++;
		}
	}
}
