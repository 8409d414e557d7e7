/* SPDX-License-Identifier: MIT */
/* The fuzzer's calls. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "fuzz.h"
#include "guard.h"
#include "standin.h"

static char *some_slot(struct thread *thread, size_t **length)
{
	unsigned int index = below(&thread->random, SLOTS);

	*length = &thread->lengths[index];
	return thread->slots[index];
}

static int some_share(struct thread *thread)
{
	return SHARE_FD + below(&thread->random, SHARES);
}

static unsigned int some_node(struct thread *thread)
{
	return below(&thread->random, NODES);
}

/* Mostly good; else wrong in one of the ways that there are. */
static char *some_pointer(struct thread *thread)
{
	struct random *random = &thread->random;
	char *pages = thread->window.pages;
	size_t *length;

	if (!once_in(random, 5))
		return pages + below(random, CPU_PAGE - STRUCTURE_SIZE + 1);
	switch (below(random, 8)) {
	case 0: /* its end may only be read */
		return pages + CPU_PAGE - below(random, STRUCTURE_SIZE);
	case 1:
		return pages + CPU_PAGE + below(random, CPU_PAGE - STRUCTURE_SIZE);
	case 2: /* its end is not there */
		return pages + 2 * CPU_PAGE - below(random, STRUCTURE_SIZE);
	case 3:
		return pages + 2 * CPU_PAGE;
	case 4: /* GPU memory */
		return some_slot(thread, &length) + below(random, 2 * CPU_PAGE);
	case 5: /* the kernel's */
		return (char *)(0xffff888000000000 + below(random, 1 << 20));
	case 6:
		return (char *)(0x7ffffffff000 - below(random, STRUCTURE_SIZE));
	default:
		return (char *)some_number(random);
	}
}

/* What of a structure at a pointer lies in the window. */
static size_t bytes_in_window(const struct thread *thread, const char *pointer)
{
	const char *end = thread->window.pages + 2 * CPU_PAGE;

	if (pointer < thread->window.pages || pointer >= end)
		return 0;
	return end - pointer < STRUCTURE_SIZE ? end - pointer : STRUCTURE_SIZE;
}

static bool in_slot(const struct thread *thread, const char *pointer)
{
	for (int i = 0; i < SLOTS; i++) {
		if (pointer >= thread->slots[i] && pointer < thread->slots[i] + BLOCK_SIZE)
			return true;
	}
	return false;
}

static char *behind(const struct thread *thread, const char *pointer)
{
	return thread->window.behind + (pointer - thread->window.pages);
}

static void put_structure(const struct thread *thread, char *pointer,
			  const struct structure *structure)
{
	size_t size = bytes_in_window(thread, pointer);

	if (size)
		memcpy(behind(thread, pointer), structure->bytes, size);
	else if (in_slot(thread, pointer))
		guarded_copy(pointer, structure->bytes, STRUCTURE_SIZE);
}

static void call_ioctl(struct thread *thread)
{
	struct structure structure;
	char *pointer = some_pointer(thread);
	int result;

	structure_make(&structure, &thread->random);
	if (once_in(&thread->random, 3))
		structure_spoil(&structure, &thread->random);
	put_structure(thread, pointer, &structure);
	result = result_of(ioctl(NODE_FD + structure.node, structure.command, pointer));
	record(thread, structure.call, result);
	/* In GPU memory the answer may be another thread's by now. */
	if (!result && bytes_in_window(thread, pointer) == STRUCTURE_SIZE) {
		memcpy(structure.bytes, behind(thread, pointer), STRUCTURE_SIZE);
		structure_keep_result(&structure, &thread->random);
	}
}

static void call_share_ioctl(struct thread *thread)
{
	struct structure structure;
	char *pointer = some_pointer(thread);

	structure_make(&structure, &thread->random);
	put_structure(thread, pointer, &structure);
	record(thread, CALL_SHARE_IOCTL,
	       result_of(ioctl(some_share(thread), structure.command, pointer)));
}

static void call_open(struct thread *thread)
{
	int fd;

	if (thread->stranger || !once_in(&thread->random, 10))
		return;
	fd = open(GDRDRV_NODE, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	record(thread, CALL_OPEN, result_of(fd));
	if (fd >= 0)
		install_fd(fd, NODE_FD + some_node(thread));
}

static size_t some_length(struct random *random)
{
	switch (below(random, 8)) {
	case 0:
		return below(random, BLOCK_SIZE);
	case 1:
		return some_number(random);
	default:
		return (1 + below(random, BLOCK_PAGES)) * GDRDRV_GPU_PAGE_SIZE;
	}
}

static int some_map_flags(struct random *random)
{
	static const int others[] = {
		MAP_POPULATE,  MAP_NORESERVE, MAP_LOCKED, MAP_NONBLOCK | MAP_POPULATE,
		MAP_GROWSDOWN, MAP_HUGETLB,   MAP_SYNC,	  MAP_STACK,
	};
	int flags = MAP_SHARED;

	switch (below(random, 12)) {
	case 0:
		flags = MAP_PRIVATE;
		break;
	case 1:
		flags = MAP_SHARED_VALIDATE;
		break;
	case 2:
		flags = 0;
		break;
	}
	if (once_in(random, 4))
		flags |= others[below(random, sizeof(others) / sizeof(others[0]))];
	return flags;
}

static int some_protection(struct random *random)
{
	return once_in(random, 4) ? below(random, 16) : PROT_READ | PROT_WRITE;
}

/* In a slot, if it fits, or where the kernel likes. */
static int map(struct thread *thread, int fd, uint64_t offset)
{
	struct random *random = &thread->random;
	int flags = some_map_flags(random);
	size_t length = some_length(random), *slot_length;
	char *slot = some_slot(thread, &slot_length), *mapped;
	bool fixed = length <= BLOCK_SIZE && below(random, 8);

	mapped = (char *)syscall(SYS_mmap, fixed ? slot : NULL, length, some_protection(random),
				 fixed ? flags | MAP_FIXED : flags, fd, offset);
	if (mapped == MAP_FAILED)
		return result_of(-1);
	if (fixed)
		*slot_length = length;
	else
		munmap(mapped, length);
	return 0;
}

static void call_mmap_node(struct thread *thread)
{
	unsigned int node = some_node(thread);
	uint64_t offset = some_handle(&thread->random, node) * CPU_PAGE;

	if (once_in(&thread->random, 10))
		offset += some_number(&thread->random);
	record(thread, CALL_MMAP_NODE, map(thread, NODE_FD + node, offset));
}

static void call_mmap_share(struct thread *thread)
{
	uint64_t offset = below(&thread->random, 2) * GDRDRV_GPU_PAGE_SIZE;

	if (once_in(&thread->random, 4))
		offset = some_number(&thread->random);
	record(thread, CALL_MMAP_SHARE, map(thread, some_share(thread), offset));
}

/* A range that begins in a slot and ends in it too. */
static char *some_range(struct thread *thread, size_t *size)
{
	size_t *length, at;
	char *slot = some_slot(thread, &length);

	if (!*length || below(&thread->random, 2)) {
		*size = *length;
		return slot;
	}
	at = below(&thread->random, *length);
	if (below(&thread->random, 4))
		at &= -CPU_PAGE;
	*size = below(&thread->random, *length - at + 1);
	return slot + at;
}

static void call_munmap(struct thread *thread)
{
	size_t size;
	char *at = some_range(thread, &size);

	record(thread, CALL_MUNMAP, result_of(munmap(at, size)));
}

static void call_mremap(struct thread *thread)
{
	struct random *random = &thread->random;
	size_t size, new_size, *length;
	char *at = some_range(thread, &size), *moved;
	char *to = some_slot(thread, &length);
	int flags = below(random, 8);

	new_size = below(random, 2) ? size : below(random, BLOCK_SIZE);
	if (once_in(random, 10))
		size = 0;
	moved = mremap(at, size, new_size, flags, to);
	record(thread, CALL_MREMAP, result_of((long)moved));
	if (moved == to)
		*length = new_size;
	else if (moved != MAP_FAILED && moved != at)
		munmap(moved, new_size);
}

static void call_mprotect(struct thread *thread)
{
	size_t size;
	char *at = some_range(thread, &size);

	record(thread, CALL_MPROTECT,
	       result_of(mprotect(at, size, some_protection(&thread->random))));
}

static void call_touch(struct thread *thread)
{
	size_t *length;
	char *slot = some_slot(thread, &length);
	uint32_t value, *word;

	word = (uint32_t *)(slot + below(&thread->random, *length / 4 + 1) * 4);
	record(thread, CALL_TOUCH,
	       below(&thread->random, 2) ? guarded_store(word, 1) : guarded_read(word, &value));
}

static void call_read(struct thread *thread)
{
	static const size_t sizes[] = {0, 1, 23, 24, 25, 48, 64, 240};
	struct random *random = &thread->random;
	int fd = once_in(random, 10) ? some_share(thread) : NODE_FD + (int)some_node(thread);
	char *pointer = some_pointer(thread);
	size_t size = once_in(random, 8) ? some_number(random) : sizes[below(random, 8)];
	struct iovec parts[] = {{pointer, size}, {some_pointer(thread), 24}};

	switch (below(random, 4)) {
	case 0:
		record(thread, CALL_READ, result_of(readv(fd, parts, 1 + below(random, 2))));
		break;
	case 1:
		record(thread, CALL_READ,
		       result_of(pread(fd, pointer, size, below(random, 2) * 24)));
		break;
	default:
		record(thread, CALL_READ, result_of(read(fd, pointer, size)));
	}
}

static void call_poll(struct thread *thread)
{
	struct pollfd fds[] = {
		{.fd = NODE_FD + some_node(thread), .events = random_next(&thread->random)},
		{.fd = some_share(thread), .events = random_next(&thread->random)},
	};

	record(thread, CALL_POLL, result_of(poll(fds, below(&thread->random, 3), 0)));
}

/* What neither kind of descriptor can do. */
static void call_misuse(struct thread *thread)
{
	struct random *random = &thread->random;
	bool node = below(random, 2);
	int fd = node ? NODE_FD + (int)some_node(thread) : some_share(thread);
	char path[32];
	int reopened;

	switch (below(random, 6)) {
	case 0:
		record(thread, CALL_MISUSE, result_of(write(fd, some_pointer(thread), 24)));
		break;
	case 1:
		record(thread, CALL_MISUSE, result_of(lseek(fd, below(random, 100), SEEK_END)));
		break;
	case 2:
		record(thread, CALL_MISUSE, result_of(ftruncate(fd, some_number(random))));
		break;
	case 3:
		record(thread, CALL_MISUSE, result_of(fallocate(fd, 0, 0, CPU_PAGE)));
		break;
	case 4:
		record(thread, CALL_MISUSE, result_of(fsync(fd)));
		break;
	default:
		if (node)
			break;
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		reopened = open(path, O_RDWR | O_CLOEXEC);
		record(thread, CALL_MISUSE, result_of(reopened));
		if (reopened >= 0)
			close(reopened);
	}
}

static void call_memory(struct thread *thread)
{
	unsigned int index = below(&thread->random, BLOCKS);
	uint64_t address = (uintptr_t)phase->blocks[index];

	if (thread->stranger)
		return;
	if (below(&thread->random, 2))
		record(thread, CALL_FREE_MEMORY,
		       result_of(gpu_memory_free(VIEW_FD + index, address)));
	else
		record(thread, CALL_PLACE_MEMORY,
		       result_of(gpu_memory_place(VIEW_FD + index, address)));
}

static const struct {
	void (*make)(struct thread *thread);
	unsigned int weight;
} calls[] = {
	{call_ioctl, 60},     {call_share_ioctl, 2}, {call_open, 1},   {call_mmap_node, 6},
	{call_mmap_share, 6}, {call_munmap, 3},	     {call_mremap, 3}, {call_mprotect, 3},
	{call_touch, 8},      {call_read, 6},	     {call_poll, 3},   {call_misuse, 2},
	{call_memory, 2},
};

void call_something(struct thread *thread)
{
	unsigned int total = 0, pick, i;

	for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		total += calls[i].weight;
	pick = below(&thread->random, total);
	for (i = 0; pick >= calls[i].weight; i++)
		pick -= calls[i].weight;
	calls[i].make(thread);
}
