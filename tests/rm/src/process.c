/* SPDX-License-Identifier: MIT */
/* What a program does to its address space and its descriptors, as far as it concerns a node. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "event.h"
#include "fault.h"
#include "ledger.h"
#include "libc.h"
#include "rm.h"

static int check_mmap(const struct mapping *mapping, int fd, size_t length, int prot, int flags,
		      off_t offset)
{
	size_t page = getpagesize();
	int mode = fcntl(fd, F_GETFL) & O_ACCMODE;
	int fault = fault_take("mmap");

	if (fault)
		return fault;
	if (mode == O_WRONLY || (prot & PROT_WRITE && mode != O_RDWR))
		return EACCES;
	if (!mapping || offset || (flags & MAP_TYPE) == MAP_PRIVATE)
		return EINVAL;
	if (((length + page - 1) & ~(page - 1)) != mapping->length)
		return ENXIO;
	return 0;
}

void *rm_mmap(const struct open_node *node, int fd, void *address, size_t length, int prot,
	      int flags, off_t offset)
{
	const struct object *object;
	struct mapping *mapping;
	void *view = MAP_FAILED;

	ledger_lock();
	mapping = mapping_of_file(&node->file, &object);
	errno = check_mmap(mapping, fd, length, prot, flags, offset);
	if (!errno)
		view = memory_map(&object->memory, address, mapping->length, prot, flags,
				  mapping->offset);
	if (view != MAP_FAILED && !view_add(mapping, view, mapping->length)) {
		libc()->munmap(view, mapping->length);
		view = MAP_FAILED;
		errno = ENOMEM;
	}
	ledger_unlock();
	return view;
}

int rm_munmap(void *address, size_t length)
{
	int ret;

	if ((!ledger_has_views() && !ledger_has_clients()) || !ledger_is_of_this_process())
		return libc()->munmap(address, length);

	/* Under the lock, or a view that appears at this address meanwhile would be forgotten. */
	ledger_lock();
	ret = fault_take("munmap");
	if (ret) {
		errno = ret;
		ret = -1;
	} else {
		ledger_unmapped(address, length);
		ret = libc()->munmap(address, length);
		if (!ret)
			view_remove(address, length);
	}
	ledger_unlock();
	return ret;
}

bool rm_node_of_fd(int fd, struct open_node *node)
{
	bool found = node_of_fd(fd, node);

	if (found || !event_exists())
		return found;
	ledger_lock();
	found = event_node(fd, node);
	ledger_unlock();
	return found;
}

int rm_close(int fd)
{
	struct open_node node;
	int ret, saved_errno;

	if (!ledger_has_clients() || !ledger_is_of_this_process() || !rm_node_of_fd(fd, &node))
		return libc()->close(fd);

	ledger_lock();
	if (node.node.kind != NODE_CONTROL && !ledger_is_registered(&node.file)) {
		ledger_unlock();
		return libc()->close(fd);
	}
	ret = libc()->close(fd);
	saved_errno = errno;
	event_closed(fd);
	ledger_reap();
	ledger_unlock();
	errno = saved_errno;
	return ret;
}
