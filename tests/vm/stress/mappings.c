/* SPDX-License-Identifier: MIT */
/* The storm's mappings: made, touched, changed and taken away, each in its slot. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "guard.h"
#include "storm.h"

static struct slot *some_own_slot(struct thread *thread)
{
	return &worker.slots[below(&thread->random, SLOTS)];
}

static struct slot *some_peer_slot(struct thread *thread, unsigned int peer)
{
	return &worker.peer_slots[peer][below(&thread->random, PEER_SLOTS)];
}

static unsigned int some_peer(struct thread *thread)
{
	return below(&thread->random, storm->options.workers);
}

struct slot *some_slot(struct thread *thread)
{
	if (below(&thread->random, 3))
		return some_own_slot(thread);
	return some_peer_slot(thread, some_peer(thread));
}

static uint32_t length_of(const struct slot *slot)
{
	uint32_t length = slot->length;

	return length ? length : CPU_PAGE;
}

/* Whole pages: a part of the slot's mapping, if it has two pages. */
static uint32_t some_part(struct thread *thread, const struct slot *slot, char **address)
{
	uint32_t pages = length_of(slot) / CPU_PAGE;
	uint32_t first = below(&thread->random, pages);

	*address = slot->address + first * CPU_PAGE;
	return (1 + below(&thread->random, pages - first)) * CPU_PAGE;
}

static int some_protection(struct thread *thread)
{
	static const int others[] = {PROT_READ,	 PROT_READ, PROT_READ,
				     PROT_WRITE, PROT_NONE, PROT_READ | PROT_EXEC};

	if (below(&thread->random, 3))
		return PROT_READ | PROT_WRITE;
	return others[below(&thread->random, 6)];
}

static int map(struct thread *thread, struct slot *slot, uint32_t length, int fd, off_t offset)
{
	int flags = MAP_FIXED | (once_in(&thread->random, 30) ? MAP_PRIVATE : MAP_SHARED);

	if (once_in(&thread->random, 8))
		flags |= MAP_POPULATE;
	/* Else what is there already must fit, or be taken away by mmap itself. */
	if (below(&thread->random, 2))
		record(thread, UNMAP, result_of(munmap(slot->address, BLOCK_ROOM)));
	if (mmap(slot->address, length, some_protection(thread), flags, fd, offset) == MAP_FAILED)
		return result_of(-1);
	slot->length = length;
	return 0;
}

int op_map_by_handle(struct thread *thread)
{
	struct pin_name name = some_pin(thread);
	uint32_t pages = name.pages > BLOCK_PAGES ? BLOCK_PAGES : name.pages;
	uint32_t length = pages * GDRDRV_GPU_PAGE_SIZE;

	if (once_in(&thread->random, 4))
		length = (1 + below(&thread->random, length / CPU_PAGE)) * CPU_PAGE;
	return map(thread, some_own_slot(thread), length, NODE_FD + name.node,
		   (off_t)name.handle * CPU_PAGE);
}

/* Any range of a pin whose size is unknown here: what lies behind its end is refused. */
int map_share(struct thread *thread, struct slot *slot, int fd)
{
	uint32_t first = below(&thread->random, 2) ? 0 : below(&thread->random, BLOCK_ROOM / 4);
	uint32_t length = (1 + below(&thread->random, 24)) * CPU_PAGE;

	return map(thread, slot, length, fd, first / CPU_PAGE * CPU_PAGE);
}

int op_map_share(struct thread *thread)
{
	return map_share(thread, some_own_slot(thread), SHARE_FD + below(&thread->random, SHARES));
}

int op_map_peer_share(struct thread *thread)
{
	unsigned int peer = some_peer(thread);

	return map_share(thread, some_peer_slot(thread, peer),
			 PEER_FD + peer * PEER_SHARES + below(&thread->random, PEER_SHARES));
}

int touch(struct thread *thread, const struct slot *slot)
{
	uint32_t mark = mark_of(slot->owner), found, *word;
	int result;

	word = (uint32_t *)(slot->address +
			    below(&thread->random, length_of(slot) / CPU_PAGE) * CPU_PAGE);
	if (below(&thread->random, 2))
		return guarded_store(word, mark);

	result = guarded_read(word, &found);
	if (!result && !may_hold(slot->owner, found))
		storm_fail(thread, "%#x was read in memory of the owner of %#x", found, mark);
	return result;
}

int op_touch(struct thread *thread)
{
	return touch(thread, some_own_slot(thread));
}

int op_touch_peer(struct thread *thread)
{
	return touch(thread, some_peer_slot(thread, some_peer(thread)));
}

/* The kernel stores zeros there for us: what would be a signal is an errno. */
int op_touch_by_kernel(struct thread *thread)
{
	char *address;
	uint32_t length = some_part(thread, some_slot(thread), &address);
	int fd = open("/dev/zero", O_RDONLY | O_CLOEXEC), result;

	if (fd < 0)
		return result_of(-1);
	result = result_of(read(fd, address, length));
	close(fd);
	return result;
}

int op_unmap(struct thread *thread)
{
	const struct slot *slot = some_slot(thread);

	return result_of(munmap(slot->address, length_of(slot)));
}

int op_unmap_part(struct thread *thread)
{
	char *address;
	uint32_t length = some_part(thread, some_slot(thread), &address);

	return result_of(munmap(address, length));
}

int op_protect(struct thread *thread)
{
	const struct slot *slot = some_slot(thread);

	return result_of(mprotect(slot->address, length_of(slot), some_protection(thread)));
}

int op_protect_part(struct thread *thread)
{
	char *address;
	uint32_t length = some_part(thread, some_slot(thread), &address);

	return result_of(mprotect(address, length, some_protection(thread)));
}

/* The whole, or its beginning, to another slot of the same owner's memory. */
int op_move(struct thread *thread)
{
	struct slot *from = some_slot(thread), *to;
	uint32_t length = length_of(from);

	to = from->owner == worker.index && from >= worker.slots && from < worker.slots + SLOTS
		     ? some_own_slot(thread)
		     : some_peer_slot(thread, from->owner);
	if (to == from)
		return SKIPPED;
	if (once_in(&thread->random, 4))
		length = (1 + below(&thread->random, length / CPU_PAGE)) * CPU_PAGE;
	if (mremap(from->address, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, to->address) ==
	    MAP_FAILED)
		return result_of(-1);
	to->length = length;
	return 0;
}

int op_shrink(struct thread *thread)
{
	const struct slot *slot = some_slot(thread);
	uint32_t length = length_of(slot);

	if (length == CPU_PAGE)
		return SKIPPED;
	return result_of((long)mremap(slot->address, length, length - CPU_PAGE, 0));
}

int op_grow(struct thread *thread)
{
	const struct slot *slot = some_slot(thread);
	uint32_t length = length_of(slot);

	return result_of((long)mremap(slot->address, length, length + CPU_PAGE, 0));
}

int op_advise(struct thread *thread)
{
	static const int advices[] = {MADV_DOFORK, MADV_DONTNEED, MADV_DODUMP, MADV_RANDOM,
				      MADV_WILLNEED};
	char *address;
	uint32_t length = some_part(thread, some_slot(thread), &address);

	return result_of(madvise(address, length, advices[below(&thread->random, 5)]));
}
