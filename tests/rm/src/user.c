/* SPDX-License-Identifier: MIT */
#include "user.h"

#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

int copy_from_user(void *to, uint64_t from, size_t size)
{
	struct iovec local = {.iov_base = to, .iov_len = size};
	struct iovec remote = {.iov_base = (void *)(uintptr_t)from, .iov_len = size};

	return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)size ? 0 : -EFAULT;
}

int copy_to_user(uint64_t to, const void *from, size_t size)
{
	struct iovec local = {.iov_base = (void *)(uintptr_t)from, .iov_len = size};
	struct iovec remote = {.iov_base = (void *)(uintptr_t)to, .iov_len = size};

	return process_vm_writev(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)size ? 0 : -EFAULT;
}
