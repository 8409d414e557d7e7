/* SPDX-License-Identifier: MIT */
/* Device addresses: parts of this process's own address space, kept free of everything else. */
#ifndef GDRPY_SIM_ADDRESS_H
#define GDRPY_SIM_ADDRESS_H

#include <stdint.h>

/*
 * `size` bytes from a multiple of `alignment` (a power of two, at least the granularity), at `wish`
 * if that is free. 0 for want of room. Nothing is accessible there.
 */
uint64_t address_reserve(uint64_t size, uint64_t alignment, uint64_t wish);

/* Takes what is mapped there away, and keeps the addresses reserved. */
void address_clear(uint64_t start, uint64_t size);

void address_release(uint64_t start, uint64_t size);

#endif
