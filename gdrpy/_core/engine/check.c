/* SPDX-License-Identifier: MIT */
/* The self-check: copies of scratch memory, compared with what the CPU's mapping shows of it. */
#include <errno.h>
#include <string.h>

#include "copy/copy.h"
#include "engine/private.h"

#define SCRATCH (2 * CORE_PAGE + CORE_RING_ENTRIES * CORE_PUSH_NBYTES)
/* Odd on purpose, as are the offsets below. */
#define CHECKED 1237
#define IN_HOST 3
#define IN_GPU 17

static unsigned char pattern(size_t i, unsigned int seed)
{
	return (unsigned char)(i * 131 + (i >> 8) + seed);
}

static int move(struct core_channel *channel, uint64_t to, uint64_t from, struct core_error *error)
{
	const struct core_engine_piece piece = {.to = to, .from = from, .nbytes = CHECKED};
	uint32_t value;

	return core_channel_submit(channel, &piece, 1, &value, error) ||
			       core_channel_wait(channel, value, error)
		       ? -1
		       : 0;
}

/* Whether a page holds the pattern at an offset, and zeros elsewhere. */
static bool holds(const unsigned char *page, size_t at, unsigned int seed)
{
	for (size_t i = 0; i < CORE_PAGE; i++)
		if (page[i] != (i >= at && i < at + CHECKED ? pattern(i - at, seed) : 0))
			return false;
	return true;
}

/* A channel that dies of its first copies would die again. */
static int refuse(struct core_error *error)
{
	return core_fail(error, CORE_FAILED_UNAVAILABLE, EIO,
			 "the copy engine cannot be used: its self-check failed: %s",
			 error->message);
}

int core_link_check(struct core_link *link, struct core_error *error)
{
	struct core_channel *channel = link->ready[CORE_CHANNEL_SMALL];
	unsigned char *host = (unsigned char *)link->scratch.host, *shown = host + CORE_PAGE;
	uint64_t scratch_va = channel->control.va + SCRATCH, host_va = link->scratch.va;
	char *scratch = channel->control.host + SCRATCH;
	bool right;

	core_copy_to(CORE_MAPPING_WC, scratch, shown, CORE_PAGE); /* zeros */
	core_store_fence();
	for (size_t i = 0; i < CHECKED; i++)
		host[IN_HOST + i] = pattern(i, 1);
	if (move(channel, scratch_va + IN_GPU, host_va + IN_HOST, error))
		return refuse(error);
	core_copy_from(CORE_MAPPING_WC, shown, scratch, CORE_PAGE);
	right = holds(shown, IN_GPU, 1);

	for (size_t i = 0; i < CHECKED; i++)
		shown[i] = pattern(i, 2);
	core_copy_to(CORE_MAPPING_WC, scratch + IN_GPU, shown, CHECKED);
	core_store_fence();
	memset(host, 0, CORE_PAGE);
	if (move(channel, host_va + IN_HOST, scratch_va + IN_GPU, error))
		return refuse(error);
	if (right && holds(host, IN_HOST, 2))
		return 0;
	return core_fail(error, CORE_FAILED_UNAVAILABLE, EOPNOTSUPP,
			 "the copy engine cannot be used: its copies of scratch memory came out "
			 "wrong with this driver");
}
