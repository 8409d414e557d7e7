/* SPDX-License-Identifier: MIT */
/* Device addresses: reserved parts of this process's address space. */
#ifndef GDRPY_SIM_ADDRESS_H
#define GDRPY_SIM_ADDRESS_H

#include <stdint.h>

/*
 * Reserves `size` bytes at a multiple of `alignment` (a power of two, at least the granularity), at
 * `wish` if that is free. 0 if there is no room. The addresses are not accessible.
 */
uint64_t address_reserve(uint64_t size, uint64_t alignment, uint64_t wish);

/* Unmaps everything there, and keeps the addresses reserved. */
void address_clear(uint64_t start, uint64_t size);

void address_release(uint64_t start, uint64_t size);

/* Addresses of cuMemAddressReserve, in which allocations are mapped. */
struct reservation {
	uint64_t start;
	uint64_t size;
};

/* The reservation that holds the address, or NULL. */
struct reservation *reservation_at(uint64_t address);

#endif
