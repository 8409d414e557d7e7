/* SPDX-License-Identifier: MIT */
/* On the kernel module: what the page tables say of mappings. */
#include <fcntl.h>
#include <sys/ioctl.h>

#include "gpustandin.h"
#include "rig.h"

static void ask(unsigned long request, void *answer)
{
	int fd = open(GPUSTANDIN_NODE, O_RDWR | O_CLOEXEC);

	CHECK(fd >= 0);
	CHECK_EQ(ioctl(fd, request, answer), 0);
	close(fd);
}

/* The cache mode that every page of a mapping has. */
static int cache_mode(const struct view *view)
{
	int mode = -1;

	for (size_t at = 0; at < view->size; at += 4096) {
		struct gpustandin_pte pte = {.address = (uintptr_t)view->va + at};

		ask(GPUSTANDIN_PTE, &pte);
		CHECK(mode == -1 || mode == (int)pte.mode);
		CHECK(pte.writable);
		mode = (int)pte.mode;
	}
	return mode;
}

static void a_mapping_is_write_combined(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	struct view view = viewed(gdr, pointer + 70000, 100000);

	memset(view.bytes, 1, 100000);
	CHECK_EQ(cache_mode(&view), GPUSTANDIN_WC);
	CHECK_EQ(gdr_unmap(gdr, view.handle, view.va, view.size), 0);
	CHECK_EQ(gdr_map_v2(gdr, view.handle, &view.va, view.size, GDR_MAP_FLAG_REQ_WC_MAPPING), 0);
	memset(view.va, 2, view.size);
	CHECK_EQ(cache_mode(&view), GPUSTANDIN_WC);
	close_view(&view);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static struct gpustandin_stats stats(void)
{
	struct gpustandin_stats stats;

	ask(GPUSTANDIN_STATS, &stats);
	return stats;
}

static void pcie_is_forced_in_the_driver(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	uint64_t before = stats().forced_bar1_pins;
	gdr_mh_t handle;

	CHECK_EQ(gdr_pin_buffer_v2(gdr, pointer, 5, GDR_PIN_FLAG_FORCE_PCIE, &handle), 0);
	CHECK_EQ(stats().forced_bar1_pins, before + 1);
	CHECK_EQ(gdr_unpin_buffer(gdr, handle), 0);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

static void pins_are_persistent(void)
{
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	gdr_mh_t handle = pinned(gdr, pointer, GRANULE);

	CHECK_EQ(stats().persistent_pins, 1);
	CHECK_EQ(stats().pinned_pages, GRANULE / GPU_PAGE);
	CHECK_EQ(gdr_unpin_buffer(gdr, handle), 0);
	CHECK_EQ(stats().persistent_pins, 0);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

/* A client may have more buffers than a process has descriptors. */
static void mapped_pins_take_no_descriptors(void)
{
	enum {
		PINS = 20
	};
	CUdeviceptr pointer = allocate(GRANULE);
	gdr_t gdr = opened();
	int before = count_descriptors();
	struct view views[PINS];

	for (int i = 0; i < PINS; i++)
		views[i] = viewed(gdr, pointer + (size_t)i * GPU_PAGE, GPU_PAGE);
	CHECK_EQ(count_descriptors(), before);
	for (int i = 0; i < PINS; i++)
		close_view(&views[i]);
	OK(cuMemFree_v2(pointer));
	CHECK_EQ(gdr_close(gdr), 0);
}

RIG_MAIN(TEST(a_mapping_is_write_combined), TEST(pcie_is_forced_in_the_driver),
	 TEST(pins_are_persistent), TEST(mapped_pins_take_no_descriptors))
