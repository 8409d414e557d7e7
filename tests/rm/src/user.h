/* SPDX-License-Identifier: MIT */
/*
 * Memory of the calling program, which may pass any address: a bad one is an error, not a crash,
 * as it is in a kernel. Return 0, or -EFAULT.
 */
#ifndef FAKERM_USER_H
#define FAKERM_USER_H

#include <stddef.h>
#include <stdint.h>

int copy_from_user(void *to, uint64_t from, size_t size);
int copy_to_user(uint64_t to, const void *from, size_t size);

#endif
