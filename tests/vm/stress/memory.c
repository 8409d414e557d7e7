/* SPDX-License-Identifier: MIT */
/* The storm's GPU memory and its pins. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "guard.h"
#include "standin.h"
#include "storm.h"

static uint64_t pin_pack(struct pin_name name)
{
	return name.handle | (uint64_t)name.node << 32 | (uint64_t)name.pages << 40;
}

static struct pin_name pin_unpack(uint64_t packed)
{
	return (struct pin_name){packed, packed >> 32, packed >> 40};
}

/* Mostly one that was made. */
struct pin_name some_pin(struct thread *thread)
{
	struct pin_name name = pin_unpack(worker.pins[below(&thread->random, PINS)]);

	if (!name.handle || once_in(&thread->random, 50)) {
		name.handle = below(&thread->random, 64);
		name.node = below(&thread->random, NODES);
		name.pages = 1;
	}
	return name;
}

static long unpin(struct pin_name name)
{
	struct gdrdrv_unpin_buffer args = {.handle = name.handle};

	return ioctl(NODE_FD + name.node, GDRDRV_IOC_UNPIN_BUFFER, &args);
}

/* A new pin takes the place of another one in the table, which ends. */
static void keep_pin(struct thread *thread, struct pin_name name)
{
	_Atomic uint64_t *place = &worker.pins[below(&thread->random, PINS)];
	uint64_t before = atomic_exchange(place, pin_pack(name));

	if (before)
		record(thread, UNPIN, result_of(unpin(pin_unpack(before))));
}

struct range {
	uint64_t address;
	uint64_t size;
};

/* Of one block, from one GPU page on; now and then not aligned, or too long. */
static struct range some_range(struct thread *thread)
{
	const struct block *block = &worker.blocks[below(&thread->random, BLOCKS)];
	uint32_t pages = block->size / GDRDRV_GPU_PAGE_SIZE;
	uint32_t first = pages ? below(&thread->random, pages) : 0;
	struct range range = {
		.address = (uintptr_t)block->address + first * GDRDRV_GPU_PAGE_SIZE,
		.size = (1 + below(&thread->random, pages ? pages - first : 1)) *
			GDRDRV_GPU_PAGE_SIZE,
	};

	if (once_in(&thread->random, 8)) {
		range.address += below(&thread->random, 200);
		range.size = 1 + below(&thread->random, 100);
	}
	if (once_in(&thread->random, 40))
		range.size += BLOCK_ROOM;
	return range;
}

static uint8_t pages_of(struct range range)
{
	uint64_t size = range.address % GDRDRV_GPU_PAGE_SIZE + range.size;

	return (size + GDRDRV_GPU_PAGE_SIZE - 1) / GDRDRV_GPU_PAGE_SIZE;
}

int op_pin(struct thread *thread)
{
	struct range range = some_range(thread);
	unsigned int node = below(&thread->random, NODES);
	struct gdrdrv_pin_buffer args = {
		.addr = range.address,
		.size = range.size,
		.p2p_token = once_in(&thread->random, 20),
	};

	if (ioctl(NODE_FD + node, GDRDRV_IOC_PIN_BUFFER, &args))
		return result_of(-1);
	keep_pin(thread, (struct pin_name){args.handle, node, pages_of(range)});
	return 0;
}

int op_pin_v2(struct thread *thread)
{
	struct range range = some_range(thread);
	unsigned int node = below(&thread->random, NODES);
	struct gdrdrv_pin_buffer_v2 args = {
		.addr = range.address,
		.size = range.size,
		.flags = below(&thread->random, 2) ? GDRDRV_PIN_FLAG_FORCE_PCIE : 0,
	};

	if (ioctl(NODE_FD + node, GDRDRV_IOC_PIN_BUFFER_V2, &args))
		return result_of(-1);
	keep_pin(thread, (struct pin_name){args.handle, node, pages_of(range)});
	return 0;
}

int op_pin_v3(struct thread *thread)
{
	static const uint32_t lifetimes[] = {
		GDRDRV_PIN_V3_REVOCABLE,
		GDRDRV_PIN_V3_REVOCABLE,
		GDRDRV_PIN_V3_REVOCABLE | GDRDRV_PIN_V3_ZERO_AFTER,
		GDRDRV_PIN_V3_REVOCABLE | GDRDRV_PIN_V3_ZERO_AFTER,
		GDRDRV_PIN_V3_REVOCABLE | GDRDRV_PIN_V3_FORCE_PCIE,
		GDRDRV_PIN_V3_PERSISTENT,
		GDRDRV_PIN_V3_PERSISTENT | GDRDRV_PIN_V3_FORCE_PCIE,
		0,
	};
	struct range range = some_range(thread);
	unsigned int node = below(&thread->random, NODES);
	struct gdrdrv_pin_v3 args = {
		.size = sizeof(args),
		.flags = lifetimes[below(&thread->random, 8)],
		.addr = range.address,
		.length = range.size,
	};

	if (ioctl(NODE_FD + node, GDRDRV_IOC_PIN_V3, &args))
		return result_of(-1);
	keep_pin(thread, (struct pin_name){args.handle, node, pages_of(range)});
	return 0;
}

int op_unpin(struct thread *thread)
{
	return result_of(unpin(some_pin(thread)));
}

/* Marks are stored at the start of CPU pages. */
static void check_marks(const struct thread *thread, struct block *block, int fd)
{
	const uint32_t *word;
	uint32_t found;

	if (mmap(block->window, block->size, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) ==
	    MAP_FAILED)
		return;
	for (uint32_t at = 0; at < block->size; at += CPU_PAGE) {
		word = (const uint32_t *)(block->window + at);
		if (guarded_read(word, &found))
			break;
		if (!may_hold(worker.index, found))
			storm_fail(thread, "%#x was stored in memory of the owner of %#x", found,
				   mark_of(worker.index));
	}
	munmap(block->window, block->size);
}

/* A block for me alone, or NULL. */
static struct block *lock_some_block(struct thread *thread, int *fd)
{
	unsigned int index = below(&thread->random, BLOCKS);

	if (pthread_mutex_trylock(&worker.blocks[index].lock))
		return NULL;
	*fd = VIEW_FD + index;
	return &worker.blocks[index];
}

static int new_memory(struct thread *thread, struct block *block, int at)
{
	uint32_t size = (1 + below(&thread->random, BLOCK_PAGES)) * GDRDRV_GPU_PAGE_SIZE;
	int fd;

	if (block->placed)
		return SKIPPED;
	if (!block->size) {
		fd = gpu_memory_new(size, below(&thread->random, 2));
		if (fd < 0)
			return result_of(-1);
		install_fd(fd, at);
		block->size = size;
	}
	if (gpu_memory_place(at, (uintptr_t)block->address))
		return result_of(-1);
	block->placed = true;
	return 0;
}

int op_new_memory(struct thread *thread)
{
	int fd, result;
	struct block *block = lock_some_block(thread, &fd);

	if (!block)
		return SKIPPED;
	result = new_memory(thread, block, fd);
	pthread_mutex_unlock(&block->lock);
	return result;
}

/* The memory stays, and is placed anew or closed later. */
int op_free_memory(struct thread *thread)
{
	int fd, result = SKIPPED;
	struct block *block = lock_some_block(thread, &fd);

	if (!block)
		return SKIPPED;
	if (block->placed)
		result = result_of(gpu_memory_free(fd, (uintptr_t)block->address));
	if (!result)
		block->placed = false;
	pthread_mutex_unlock(&block->lock);
	return result;
}

int op_close_memory(struct thread *thread)
{
	int fd, result = SKIPPED;
	struct block *block = lock_some_block(thread, &fd);

	if (!block)
		return SKIPPED;
	if (block->size) {
		check_marks(thread, block, fd);
		block->size = 0;
		block->placed = false;
		install_nothing(fd);
		result = 0;
	}
	pthread_mutex_unlock(&block->lock);
	return result;
}
