/* SPDX-License-Identifier: MIT */
/* Every copy routine this CPU has, against memcpy, between guard pages and canaries. */
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "check.h"
#include "copy/copy.h"

#define CANARY 0xa5
#define MARGIN 64
#define SPAN (4u << 20) /* bytes between the guard pages of each side */
#define SHORT 256	/* lengths and alignments up to here are tried one by one */
#define HOSTS_PER_CASE 8
#define LONG_COPIES 40

enum direction {
	TO_MAPPING,
	FROM_MAPPING
};

/* A whole number of pages; a touch of the byte before or after it is a SIGSEGV. */
struct side {
	unsigned char *start;
	unsigned char *end;
};

static struct side mapping_side, host_side;
static unsigned char *expected;

static uint64_t random_state;

static uint64_t random_u64(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

static size_t random_below(size_t limit)
{
	return random_u64() % limit;
}

static void random_fill(unsigned char *bytes, size_t nbytes)
{
	for (; nbytes >= 8; nbytes -= 8, bytes += 8)
		memcpy(bytes, &(uint64_t){random_u64()}, 8);
	memcpy(bytes, &(uint64_t){random_u64()}, nbytes);
}

static struct side make_side(void)
{
	size_t page = sysconf(_SC_PAGESIZE);
	unsigned char *all =
		mmap(NULL, page + SPAN + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct side side = {all + page, all + page + SPAN};

	CHECK(all != MAP_FAILED);
	CHECK_EQ(mprotect(side.start, SPAN, PROT_READ | PROT_WRITE), 0);
	return side;
}

__attribute__((constructor)) static void set_up(void)
{
	const char *seed = getenv("SEED");

	random_state = seed ? strtoull(seed, NULL, 0) : 0x9e3779b97f4a7c15;
	printf("seed: SEED=%#llx\n", (unsigned long long)random_state);
	mapping_side = make_side();
	host_side = make_side();
	expected = make_side().start;
}

/* The bytes of a range and those around it, as far as the guard pages. */
static struct side around(const struct side *side, unsigned char *range, size_t nbytes)
{
	struct side window = {range - MARGIN, range + nbytes + MARGIN};

	if (window.start < side->start)
		window.start = side->start;
	if (window.end > side->end)
		window.end = side->end;
	return window;
}

static void check_copy(enum direction direction, core_copy_fn copy, const char *name,
		       unsigned char *mapping, unsigned char *host, size_t nbytes)
{
	bool to_mapping = direction == TO_MAPPING;
	unsigned char *dst = to_mapping ? mapping : host;
	unsigned char *src = to_mapping ? host : mapping;
	struct side window = around(to_mapping ? &mapping_side : &host_side, dst, nbytes);
	size_t window_bytes = window.end - window.start;

	random_fill(src, nbytes);
	memset(window.start, CANARY, window_bytes);
	memset(expected, CANARY, window_bytes);
	memcpy(expected + (dst - window.start), src, nbytes);

	copy(dst, src, nbytes);

	if (memcmp(window.start, expected, window_bytes) == 0)
		return;
	fprintf(stderr, "%s, %zu bytes, mapping at line + %zu, host at line + %zu:\n", name, nbytes,
		(size_t)mapping % 64, (size_t)host % 64);
	CHECK_MEM_EQ(window.start, expected, window_bytes);
}

/* A place for nbytes: `off` bytes away from the guard page before it, or the one behind it. */
static unsigned char *place(const struct side *side, bool low, size_t off, size_t nbytes)
{
	return low ? side->start + off : side->end - off - nbytes;
}

/* Half of the time directly at a guard page. */
static unsigned char *random_place(const struct side *side, size_t nbytes)
{
	size_t off = random_below(2) ? random_below(64) : 0;

	return place(side, random_below(2), off, nbytes);
}

static void check_every_short_copy(enum direction direction,
				   const struct core_copy_routine *routine)
{
	for (size_t nbytes = 0; nbytes <= SHORT; nbytes++)
		for (size_t off = 0; off < SHORT; off++)
			for (int i = 0; i < HOSTS_PER_CASE; i++)
				check_copy(direction, routine->copy, routine->name,
					   place(&mapping_side, i % 2, off, nbytes),
					   random_place(&host_side, nbytes), nbytes);
}

static void check_long_copies(enum direction direction, const struct core_copy_routine *routine)
{
	for (int i = 0; i < LONG_COPIES; i++) {
		size_t limit = SPAN >> random_below(12);
		size_t nbytes = i ? random_below(limit - 64) : SPAN - 64;

		check_copy(direction, routine->copy, routine->name,
			   random_place(&mapping_side, nbytes), random_place(&host_side, nbytes),
			   nbytes);
	}
}

static void check_every_routine(enum direction direction, const struct core_copy_routine *table)
{
	const char *title = direction == TO_MAPPING ? "to" : "from";

	for (; table->name; table++) {
		bool supported = table->supported();

		printf("%s write-combined memory: %s: %s\n", title, table->name,
		       supported ? "run" : "not run, this CPU lacks it");
		if (!supported)
			continue;
		check_every_short_copy(direction, table);
		check_long_copies(direction, table);
	}
}

static void every_routine_to_wc_copies_like_memcpy(void)
{
	check_every_routine(TO_MAPPING, core_routines_to_wc);
}

static void every_routine_from_wc_copies_like_memcpy(void)
{
	check_every_routine(FROM_MAPPING, core_routines_from_wc);
}

static enum core_mapping_kind public_type;

static void public_to(void *dst, const void *src, size_t nbytes)
{
	core_copy_to(public_type, dst, src, nbytes);
}

static void public_from(void *dst, const void *src, size_t nbytes)
{
	core_copy_from(public_type, dst, src, nbytes);
}

static void check_mapping_type(enum core_mapping_kind type)
{
	const struct core_copy_routine to = {.name = "to mapping", .copy = public_to};
	const struct core_copy_routine from = {.name = "from mapping", .copy = public_from};

	public_type = type;
	check_every_short_copy(TO_MAPPING, &to);
	check_long_copies(TO_MAPPING, &to);
	check_every_short_copy(FROM_MAPPING, &from);
	check_long_copies(FROM_MAPPING, &from);
}

static void write_combined_mappings_are_copied_like_memcpy(void)
{
	check_mapping_type(CORE_MAPPING_WC);
}

static void cached_mappings_are_copied_like_memcpy(void)
{
	check_mapping_type(CORE_MAPPING_CACHED);
}

static void device_mappings_are_copied_like_memcpy(void)
{
	check_mapping_type(CORE_MAPPING_DEVICE);
}

/* Inside the guard page, where any access is a SIGSEGV. */
static void a_copy_of_no_bytes_touches_nothing(void)
{
	static const enum core_mapping_kind types[] = {CORE_MAPPING_WC, CORE_MAPPING_CACHED,
						       CORE_MAPPING_DEVICE};

	for (size_t off = 0; off < 64; off++) {
		for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
			core_copy_to(types[i], mapping_side.end + off, host_side.end, 0);
			core_copy_from(types[i], host_side.end, mapping_side.end + off, 0);
		}
		for (const struct core_copy_routine *to = core_routines_to_wc; to->name; to++)
			if (to->supported())
				to->copy(mapping_side.end + off, host_side.end, 0);
		for (const struct core_copy_routine *from = core_routines_from_wc; from->name;
		     from++)
			if (from->supported())
				from->copy(host_side.end, mapping_side.end + off, 0);
	}
}

static void check_names_are_unique(const struct core_copy_routine *table)
{
	for (const struct core_copy_routine *one = table; one->name; one++)
		for (const struct core_copy_routine *other = table; other != one; other++)
			if (strcmp(one->name, other->name) == 0)
				FAIL("two routines are named %s", one->name);
}

static void no_two_routines_of_a_table_share_a_name(void)
{
	check_names_are_unique(core_routines_to_wc);
	check_names_are_unique(core_routines_from_wc);
}

static void check_choice(const struct core_copy_routine *table, const char *(*chosen)(size_t))
{
	for (size_t nbytes = 1; nbytes <= SPAN; nbytes++) {
		const struct core_copy_routine *best = table;

		while (!best->supported() || best->best_up_to < nbytes)
			best++;
		CHECK_STR_EQ(chosen(nbytes), best->name);
		if (nbytes > SHORT)
			nbytes += random_below(nbytes);
	}
}

static void the_first_supported_routine_that_is_best_for_the_size_is_chosen(void)
{
	check_choice(core_routines_to_wc, core_routine_to_wc);
	check_choice(core_routines_from_wc, core_routine_from_wc);
}

CHECK_MAIN(TEST(every_routine_to_wc_copies_like_memcpy),
	   TEST(every_routine_from_wc_copies_like_memcpy),
	   TEST(write_combined_mappings_are_copied_like_memcpy),
	   TEST(cached_mappings_are_copied_like_memcpy),
	   TEST(device_mappings_are_copied_like_memcpy), TEST(a_copy_of_no_bytes_touches_nothing),
	   TEST(no_two_routines_of_a_table_share_a_name),
	   TEST(the_first_supported_routine_that_is_best_for_the_size_is_chosen))
