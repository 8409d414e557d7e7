/* SPDX-License-Identifier: MIT */
/* What an owner has: GPU memory, nodes, pins, shares and mappings. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "closes.h"
#include "guard.h"
#include "standin.h"

#define NULL_FD 90
#define OPEN_ATTEMPTS 200

struct world world;

static char *slots; /* SLOTS of BLOCK_ROOM each; no access where nothing is mapped */

static char *reserve(size_t size)
{
	const uintptr_t mask = GDRDRV_GPU_PAGE_SIZE - 1;
	char *room = mmap(NULL, size + mask + 1, PROT_NONE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (room == MAP_FAILED)
		closes_fail("address space: %s", strerror(errno));
	return (char *)(((uintptr_t)room + mask) & ~mask);
}

static void replace_fd(int fd, int at)
{
	if (dup3(fd, at, O_CLOEXEC) < 0)
		closes_fail("dup3: %s", strerror(errno));
}

static void install_fd(int fd, int at)
{
	replace_fd(fd, at);
	close(fd);
}

/* In a runner, whose owners inherit it. */
void world_reserve(void)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null < 0)
		closes_fail("/dev/null: %s", strerror(errno));
	install_fd(null, NULL_FD);
	for (int fd = FIXED_FD; fd < FIXED_FD_END; fd++)
		replace_fd(NULL_FD, fd);
	for (int i = 0; i < BLOCKS; i++)
		world.addresses[i] = reserve(BLOCK_ROOM);
	slots = reserve(SLOTS * BLOCK_ROOM);
}

static void choose_order(struct random *random)
{
	static const uint8_t orders[][3] = {
		{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0},
	};
	const uint8_t *order = orders[below(random, 6)];

	world.node_fd = FIXED_FD + order[0] * FIXED_FD_ROOM;
	world.view_fd = FIXED_FD + order[1] * FIXED_FD_ROOM;
	world.share_fd = FIXED_FD + order[2] * FIXED_FD_ROOM;
}

/* While the module is unloaded and loaded again, the node is not there. */
static int open_node(struct random *random)
{
	int flags = O_RDWR | O_CLOEXEC | (below(random, 2) ? O_NONBLOCK : 0), fd;

	for (int attempt = 0; attempt < OPEN_ATTEMPTS; attempt++) {
		fd = open(GDRDRV_NODE, flags);
		record(OPEN_NODE, result_of(fd));
		if (fd >= 0)
			return fd;
		poll(NULL, 0, 1);
	}
	return -1;
}

static void make_memory(struct random *random, unsigned int index)
{
	uint32_t pages = 1 + below(random, BLOCK_PAGES);
	int fd = gpu_memory_new(pages * GDRDRV_GPU_PAGE_SIZE, below(random, 2));

	record(NEW_MEMORY, result_of(fd));
	install_fd(fd, world.view_fd + index);
	record(PLACE_MEMORY, result_of(gpu_memory_place(world.view_fd + index,
							(uintptr_t)world.addresses[index])));
	world.block_pages[index] = pages;
}

/* Mostly one that lives. */
static uint64_t some_pin(struct random *random, unsigned int *node)
{
	uint64_t found = 0;

	for (int attempt = 0; attempt < 3 && !found; attempt++) {
		*node = below(random, world.nodes);
		found = world.pins[*node][below(random, PINS)];
	}
	return found;
}

static void unpin(unsigned int node, uint64_t pin)
{
	struct gdrdrv_unpin_buffer args = {.handle = (uint32_t)pin};

	if (pin)
		record(UNPIN,
		       result_of(ioctl(world.node_fd + node, GDRDRV_IOC_UNPIN_BUFFER, &args)));
}

/* A new pin takes the place of another one, which ends. */
static void pin(struct random *random)
{
	static const uint32_t lifetimes[] = {
		GDRDRV_PIN_V3_PERSISTENT,
		GDRDRV_PIN_V3_PERSISTENT | GDRDRV_PIN_V3_ZERO_AFTER,
		GDRDRV_PIN_V3_REVOCABLE,
		GDRDRV_PIN_V3_REVOCABLE,
		GDRDRV_PIN_V3_REVOCABLE | GDRDRV_PIN_V3_ZERO_AFTER,
	};
	unsigned int block = below(random, world.blocks), node = below(random, world.nodes);
	uint64_t first = below(random, world.block_pages[block]);
	uint64_t pages = 1 + below(random, world.block_pages[block] - first);
	struct gdrdrv_pin_v3 args = {
		.size = sizeof(args),
		.flags = lifetimes[below(random, 5)],
		.addr = (uintptr_t)world.addresses[block] + first * GDRDRV_GPU_PAGE_SIZE,
		.length = pages * GDRDRV_GPU_PAGE_SIZE,
	};
	int result = result_of(ioctl(world.node_fd + node, GDRDRV_IOC_PIN_V3, &args));

	record(PIN, result);
	if (!result)
		unpin(node, atomic_exchange(&world.pins[node][below(random, PINS)],
					    args.handle | pages << 32));
}

static void unpin_one(struct random *random)
{
	unsigned int node = below(random, world.nodes);

	unpin(node, atomic_exchange(&world.pins[node][below(random, PINS)], 0));
}

static void share(struct random *random)
{
	unsigned int node, index = below(random, SHARES);
	uint64_t name = some_pin(random, &node);
	struct gdrdrv_share args = {
		.size = sizeof(args),
		.flags = below(random, 3) ? 0 : GDRDRV_SHARE_RDONLY,
		.handle = (uint32_t)name,
	};
	int result = result_of(ioctl(world.node_fd + node, GDRDRV_IOC_SHARE, &args));

	record(SHARE, result);
	if (result)
		return;
	install_fd(args.fd, world.share_fd + index);
	world.share_pages[index] = name >> 32;
}

static char *some_slot(struct random *random)
{
	return slots + below(random, SLOTS) * BLOCK_ROOM;
}

/* The slot as it was at first, in one step. */
static void unmap(char *slot)
{
	void *empty = mmap(slot, BLOCK_ROOM, PROT_NONE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);

	record(UNMAP, result_of(empty == MAP_FAILED ? -1 : 0));
}

/*
 * By way of an address that the kernel chooses: where a mapping at a fixed one fails, a hole is
 * left, which another thread's stack may come to fill.
 */
static int map_at(char *slot, uint64_t pages, int fd, uint64_t offset)
{
	uint64_t size = (pages ? pages : 1) * GDRDRV_GPU_PAGE_SIZE;
	void *mapped, *moved;

	mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
	if (mapped == MAP_FAILED)
		return result_of(-1);
	unmap(slot);
	moved = mremap(mapped, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, slot);
	record(MOVE, result_of((long)moved));
	if (moved == MAP_FAILED)
		munmap(mapped, size);
	return 0;
}

static void map_by_handle(struct random *random)
{
	unsigned int node;
	uint64_t name = some_pin(random, &node);

	record(MAP_BY_HANDLE, map_at(some_slot(random), name >> 32, world.node_fd + node,
				     (uint64_t)(uint32_t)name * CPU_PAGE));
}

static void map_share(struct random *random)
{
	unsigned int index = below(random, SHARES);

	for (int attempt = 0; attempt < 2 && !world.share_pages[index]; attempt++)
		index = below(random, SHARES);

	record(MAP_SHARE,
	       map_at(some_slot(random), world.share_pages[index], world.share_fd + index, 0));
}

static void touch(struct random *random)
{
	uint32_t *word = (uint32_t *)(some_slot(random) + below(random, 4) * CPU_PAGE), value;

	record(TOUCH, below(random, 2) ? guarded_store(word, 1) : guarded_read(word, &value));
}

static void ask(struct random *random)
{
	unsigned int node;
	uint32_t handle = some_pin(random, &node);
	struct gdrdrv_get_info_v2 info = {.handle = handle};
	struct gdrdrv_get_cb_flag flag = {.handle = handle};
	struct gdrdrv_req_mapping_type type = {.handle = handle, .mapping_type = below(random, 5)};
	int fd = world.node_fd + node;

	switch (below(random, 3)) {
	case 0:
		record(GET_INFO, result_of(ioctl(fd, GDRDRV_IOC_GET_INFO_V2, &info)));
		break;
	case 1:
		record(GET_CB_FLAG, result_of(ioctl(fd, GDRDRV_IOC_GET_CB_FLAG, &flag)));
		break;
	default:
		record(SET_TYPE, result_of(ioctl(fd, GDRDRV_IOC_REQ_MAPPING_TYPE, &type)));
	}
}

static void hear(struct random *random)
{
	struct pollfd node = {.fd = world.node_fd + (int)below(random, world.nodes),
			      .events = POLLIN};
	struct pollfd share = {.fd = world.share_fd + (int)below(random, SHARES)};
	struct gdrdrv_event events[4];

	record(POLL_SHARE, result_of(poll(&share, 1, 0)));
	record(POLL_NODE, result_of(poll(&node, 1, 0)));
	/* Without an event it would wait, unless another thread has taken the event. */
	if (node.revents & POLLIN && closes->target != TARGET_KILL)
		record(READ_EVENTS, result_of(read(node.fd, events, sizeof(events))));
}

void world_free_some(struct random *random)
{
	unsigned int block = below(random, world.blocks);

	record(FREE_MEMORY, result_of(gpu_memory_free(world.view_fd + block,
						      (uintptr_t)world.addresses[block])));
}

static void place_again(struct random *random)
{
	unsigned int block = below(random, world.blocks);

	record(PLACE_MEMORY, result_of(gpu_memory_place(world.view_fd + block,
							(uintptr_t)world.addresses[block])));
}

static void close_share(struct random *random)
{
	world_close(world.share_fd + below(random, SHARES), CLOSE_SHARE);
}

void world_step(struct random *random)
{
	static void (*const steps[])(struct random *random) = {
		pin,	   pin,	  pin,	 unpin_one, share,	 share,		share,
		map_share, touch, touch, touch,	    touch,	 map_share,	map_by_handle,
		ask,	   ask,	  hear,	 map_share, close_share, map_by_handle,
	};

	if (once_in(random, 40))
		world_free_some(random);
	else if (once_in(random, 40))
		place_again(random);
	else
		steps[below(random, sizeof(steps) / sizeof(steps[0]))](random);
}

bool world_make(uint64_t seed)
{
	struct random *random = &world.random;
	int fd;

	random->state = seed;
	choose_order(random);
	world.nodes = world.blocks = 0;
	for (unsigned int i = 1 + below(random, NODES); world.nodes < i; world.nodes++) {
		fd = open_node(random);
		if (fd < 0)
			return false;
		install_fd(fd, world.node_fd + world.nodes);
	}
	for (unsigned int i = 1 + below(random, BLOCKS); world.blocks < i; world.blocks++)
		make_memory(random, world.blocks);
	for (unsigned int i = 2 + below(random, PINS); i--;)
		pin(random);
	return true;
}

/* A share of the first node, whose pin is on no list and ends only with the node. */
int world_witness(void)
{
	struct gdrdrv_pin_v3 pinned = {
		.size = sizeof(pinned),
		.flags = GDRDRV_PIN_V3_PERSISTENT,
		.addr = (uintptr_t)world.addresses[0],
		.length = GDRDRV_GPU_PAGE_SIZE,
	};
	struct gdrdrv_share args = {.size = sizeof(args)};
	int result = result_of(ioctl(world.node_fd, GDRDRV_IOC_PIN_V3, &pinned));

	record(PIN, result);
	if (result)
		return -1;
	args.handle = pinned.handle;
	result = result_of(ioctl(world.node_fd, GDRDRV_IOC_SHARE, &args));
	record(SHARE, result);
	return result ? -1 : args.fd;
}

void world_close(int fd, enum operation operation)
{
	record(operation, result_of(dup3(NULL_FD, fd, O_CLOEXEC)));
}

void world_close_nodes(void)
{
	for (unsigned int i = 0; i < world.nodes; i++)
		world_close(world.node_fd + i, CLOSE_NODE);
}

void world_close_shares(void)
{
	for (int i = 0; i < SHARES; i++)
		world_close(world.share_fd + i, CLOSE_SHARE);
}

void world_close_views(void)
{
	for (unsigned int i = 0; i < world.blocks; i++)
		world_close(world.view_fd + i, CLOSE_MEMORY);
}

/*
 * In a child of the owner. The parent's mappings were not copied, and left holes: a mapping in one
 * of them could reach over the end of a slot, and would not let the slot be emptied alone.
 */
void world_fill_holes(void)
{
	for (int i = 0; i < SLOTS; i++)
		unmap(slots + i * BLOCK_ROOM);
}

/* In a child of the owner: only shares work. */
void world_as_stranger(struct random *random)
{
	int node = world.node_fd + below(random, world.nodes);
	struct gdrdrv_get_info_v2 info = {.handle = 1};

	record(STRANGER_IOCTL, result_of(ioctl(node, GDRDRV_IOC_GET_INFO_V2, &info)));
	record(STRANGER_MAP, result_of((long)mmap(NULL, GDRDRV_GPU_PAGE_SIZE, PROT_READ, MAP_SHARED,
						  node, CPU_PAGE)));
	for (unsigned int i = below(random, 6); i--;) {
		map_share(random);
		touch(random);
	}
}
