/* SPDX-License-Identifier: MIT */
/* The C library libgdrapi timed: its calls one by one, its copies in loops. */
#include <time.h>

#include <gdrapi.h>

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* A buffer's pin and mapping; how many ns each of the calls took. */
struct bench_pinned {
	gdr_mh_t pin;
	void *start;   /* of the mapping */
	void *address; /* of the buffer in it */
	uint64_t mapped;
	uint64_t pin_ns, map_ns, unmap_ns, unpin_ns;
};

/* The errno of the call that failed, nothing being left of it then. */
int bench_pin(gdr_t gdr, unsigned long ptr, size_t nbytes, struct bench_pinned *out)
{
	gdr_info_t info;
	uint64_t times[4];
	int error;

	times[0] = now();
	error = gdr_pin_buffer(gdr, ptr, nbytes, 0, 0, &out->pin);
	times[1] = now();
	if (error)
		return error;
	error = gdr_get_info(gdr, out->pin, &info);
	times[2] = now();
	if (!error)
		error = gdr_map(gdr, out->pin, &out->start, info.mapped_size);
	times[3] = now();
	if (error) {
		gdr_unpin_buffer(gdr, out->pin);
		return error;
	}
	out->address = (char *)out->start + (ptr - info.va);
	out->mapped = info.mapped_size;
	out->pin_ns = times[1] - times[0];
	out->map_ns = times[3] - times[2];
	return 0;
}

int bench_unpin(gdr_t gdr, struct bench_pinned *pinned)
{
	uint64_t start = now(), between;
	int error = gdr_unmap(gdr, pinned->pin, pinned->start, pinned->mapped);

	between = now();
	pinned->unmap_ns = between - start;
	if (!error)
		error = gdr_unpin_buffer(gdr, pinned->pin);
	pinned->unpin_ns = now() - between;
	return error;
}

/* Pin, map, copy in and out, unmap, unpin; the ns that so many of these take, 0 if one failed. */
uint64_t bench_cycles(gdr_t gdr, unsigned long ptr, size_t nbytes, const void *data, void *back,
		      size_t copied, uint64_t cycles)
{
	uint64_t start = now();

	for (uint64_t cycle = 0; cycle < cycles; cycle++) {
		struct bench_pinned pinned;

		if (bench_pin(gdr, ptr, nbytes, &pinned) ||
		    gdr_copy_to_mapping(pinned.pin, pinned.address, data, copied) ||
		    gdr_copy_from_mapping(pinned.pin, back, pinned.address, copied) ||
		    bench_unpin(gdr, &pinned))
			return 0;
	}
	return now() - start;
}

uint64_t bench_to(struct bench_pinned *pinned, size_t offset, const void *host, size_t nbytes,
		  uint64_t calls)
{
	char *mapping = (char *)pinned->address + offset;
	uint64_t start = now();

	for (uint64_t call = 0; call < calls; call++)
		gdr_copy_to_mapping(pinned->pin, mapping, host, nbytes);
	return now() - start;
}

uint64_t bench_from(struct bench_pinned *pinned, size_t offset, void *host, size_t nbytes,
		    uint64_t calls)
{
	const char *mapping = (const char *)pinned->address + offset;
	uint64_t start = now();

	for (uint64_t call = 0; call < calls; call++)
		gdr_copy_from_mapping(pinned->pin, host, mapping, nbytes);
	return now() - start;
}
