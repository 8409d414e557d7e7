/* SPDX-License-Identifier: MIT */
/* Copies to and from a mapping, checked through the driver's own copies. */
#include "rig.h"

#define ROOM ((size_t)1024)

static unsigned char pattern(size_t i)
{
	return (unsigned char)(i * 7 + i / 251 + 3);
}

/* A buffer whose bytes are the pattern, and one of as many others. */
static unsigned char source[MIB + 64], found[MIB + ROOM], expected[MIB + ROOM];

static void fill_source(void)
{
	for (size_t i = 0; i < sizeof(source); i++)
		source[i] = pattern(i);
}

/* One copy to the GPU, after which nothing around its range has changed. */
static void check_copy_to(const struct view *view, CUdeviceptr pointer, size_t at, size_t from,
			  size_t nbytes, size_t room)
{
	memset(expected, 0xEE, room);
	gpu_write(pointer, expected, room);
	CHECK_EQ(gdr_copy_to_mapping(view->handle, view->bytes + at, source + from, nbytes), 0);
	memcpy(expected + at, source + from, nbytes);
	gpu_read(pointer, found, room);
	CHECK_MEM_EQ(found, expected, room);
}

static void check_copy_from(const struct view *view, size_t at, size_t to, size_t nbytes,
			    size_t room)
{
	memset(found, 0xDD, room);
	memset(expected, 0xDD, room);
	CHECK_EQ(gdr_copy_from_mapping(view->handle, found + to, view->bytes + at, nbytes), 0);
	memcpy(expected + to, source + at, nbytes);
	CHECK_MEM_EQ(found, expected, room);
}

static void small_copies_of_every_size_and_alignment_arrive(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	struct view view = viewed(gdr, pointer, GRANULE);

	fill_source();
	for (size_t nbytes = 1; nbytes <= 136; nbytes++)
		for (size_t at = 0; at < 64; at++)
			check_copy_to(&view, pointer, at, nbytes * 5 % 64, nbytes, 256);
	gpu_write(pointer, source, sizeof(source));
	for (size_t nbytes = 1; nbytes <= 136; nbytes++)
		for (size_t at = 0; at < 64; at++)
			check_copy_from(&view, at, nbytes * 5 % 64, nbytes, 256);
	close_view(&view);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void large_copies_of_every_alignment_arrive(void)
{
	static const size_t sizes[] = {255, 1000, 4096, 4097, 16383, 65536, 100001};
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	struct view view = viewed(gdr, pointer, GRANULE);

	fill_source();
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		for (size_t at = 0; at < 64; at++)
			check_copy_to(&view, pointer, at, at * 3 % 64, sizes[i], sizes[i] + 128);
	for (size_t at = 0; at < 64; at += 9)
		check_copy_to(&view, pointer, at, at * 3 % 64, MIB, MIB + 128);

	gpu_write(pointer, source, sizeof(source));
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		for (size_t at = 0; at < 64; at++)
			check_copy_from(&view, at, at * 3 % 64, sizes[i], sizes[i] + 128);
	for (size_t at = 0; at < 64; at += 9)
		check_copy_from(&view, at, at * 3 % 64, MIB, MIB + 128);
	close_view(&view);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void the_last_bytes_can_be_copied(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	struct view view = viewed(gdr, pointer, GRANULE);
	unsigned char bytes[100];

	fill_source();
	for (size_t nbytes = 1; nbytes <= sizeof(bytes); nbytes++) {
		unsigned char *at = view.bytes + view.size - nbytes;

		CHECK_EQ(gdr_copy_to_mapping(view.handle, at, source + nbytes, nbytes), 0);
		memset(bytes, 0, sizeof(bytes));
		gpu_read(pointer + GRANULE - nbytes, bytes, nbytes);
		CHECK_MEM_EQ(bytes, source + nbytes, nbytes);
		memset(bytes, 0, sizeof(bytes));
		CHECK_EQ(gdr_copy_from_mapping(view.handle, bytes, at, nbytes), 0);
		CHECK_MEM_EQ(bytes, source + nbytes, nbytes);
	}
	close_view(&view);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void a_copy_of_no_bytes_does_nothing(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	struct view view = viewed(gdr, pointer, GRANULE);
	unsigned char byte = 5;

	*view.bytes = 9;
	CHECK_EQ(gdr_copy_to_mapping(view.handle, view.bytes, &byte, 0), 0);
	CHECK_EQ(gdr_copy_from_mapping(view.handle, &byte, view.bytes, 0), 0);
	CHECK_EQ(gdr_copy_to_mapping(view.handle, view.bytes + view.size, &byte, 0), 0);
	CHECK_EQ(gdr_copy_from_mapping(view.handle, &byte, view.bytes + view.size, 0), 0);
	CHECK_EQ(byte, 5);
	CHECK_EQ(*view.bytes, 9);
	close_view(&view);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void check_refused(const struct view *view, unsigned char *at, size_t nbytes)
{
	static unsigned char host[64];

	CHECK_EQ(gdr_copy_to_mapping(view->handle, at, host, nbytes), EINVAL);
	CHECK_EQ(gdr_copy_from_mapping(view->handle, host, at, nbytes), EINVAL);
}

static void a_copy_beyond_its_mapping_is_refused(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	struct view view = viewed(gdr, pointer, GPU_PAGE), other = viewed(gdr, pointer, GRANULE);
	unsigned char *end = (unsigned char *)view.va + view.size, before, after;

	gpu_read(pointer, &before, 1);
	check_refused(&view, end, 1);
	check_refused(&view, end - 1, 2);
	check_refused(&view, (unsigned char *)view.va - 1, 2);
	check_refused(&view, view.va, view.size + 1);
	check_refused(&view, view.va, SIZE_MAX);
	check_refused(&view, end - 1, SIZE_MAX);
	check_refused(&view, (unsigned char *)view.va + 1, SIZE_MAX - (uintptr_t)view.va);
	check_refused(&view, other.bytes + GPU_PAGE, 8);
	check_refused(&view, NULL, 8);
	gpu_read(pointer, &after, 1);
	CHECK_EQ(after, before);
	close_view(&other);
	close_view(&view);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void a_copy_without_host_memory_is_refused(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	struct view view = viewed(gdr, pointer, GPU_PAGE);

	CHECK_EQ(gdr_copy_to_mapping(view.handle, view.bytes, NULL, 8), EINVAL);
	CHECK_EQ(gdr_copy_from_mapping(view.handle, NULL, view.bytes, 8), EINVAL);
	close_view(&view);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

/* Write-combined memory alone would show what a copy over itself does. */
static void a_copy_over_itself_is_refused(void)
{
	static const ptrdiff_t apart[] = {-63, -1, 0, 1, 63};
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	struct view view = viewed(gdr, pointer, GPU_PAGE);
	unsigned char *from = view.bytes + 1000, before[2000], after[2000];

	fill_source();
	CHECK_EQ(gdr_copy_to_mapping(view.handle, view.bytes, source, sizeof(before)), 0);
	gpu_read(pointer, before, sizeof(before));
	for (size_t i = 0; i < sizeof(apart) / sizeof(apart[0]); i++) {
		CHECK_EQ(gdr_copy_to_mapping(view.handle, from + apart[i], from, 64), EINVAL);
		CHECK_EQ(gdr_copy_from_mapping(view.handle, from + apart[i], from, 64), EINVAL);
	}
	gpu_read(pointer, after, sizeof(after));
	CHECK_MEM_EQ(after, before, sizeof(before));
	CHECK_EQ(gdr_copy_to_mapping(view.handle, from + 64, from, 64), 0);
	CHECK_EQ(gdr_copy_from_mapping(view.handle, from - 64, from, 64), 0);
	gpu_read(pointer + 936, after, 192);
	for (size_t i = 0; i < 192; i += 64)
		CHECK_MEM_EQ(after + i, before + 1000, 64);
	close_view(&view);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void what_is_not_mapped_cannot_be_copied(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	struct view view = viewed(gdr, pointer, GPU_PAGE);
	struct view unmapped = {.handle = pinned(gdr, pointer, GPU_PAGE)};

	check_refused(&unmapped, view.bytes, 8);
	check_refused(&unmapped, NULL, 8);
	CHECK_EQ(gdr_unmap(gdr, view.handle, view.va, view.size), 0);
	check_refused(&view, view.bytes, 8);
	CHECK_EQ(gdr_unpin_buffer(gdr, view.handle), 0);
	CHECK_EQ(gdr_unpin_buffer(gdr, unmapped.handle), 0);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

RIG_MAIN(TEST(small_copies_of_every_size_and_alignment_arrive),
	 TEST(large_copies_of_every_alignment_arrive), TEST(the_last_bytes_can_be_copied),
	 TEST(a_copy_of_no_bytes_does_nothing), TEST(a_copy_beyond_its_mapping_is_refused),
	 TEST(a_copy_without_host_memory_is_refused), TEST(a_copy_over_itself_is_refused),
	 TEST(what_is_not_mapped_cannot_be_copied))
