/* SPDX-License-Identifier: MIT */
/* Address ranges of cuMemAddressReserve, in which allocations are mapped. */
#ifndef GDRPY_SIM_RESERVATION_H
#define GDRPY_SIM_RESERVATION_H

#include "sim.h"

struct reservation {
	uint64_t start;
	uint64_t size;
};

/* The reservation that holds the address, or NULL. */
struct reservation *reservation_at(uint64_t address);

#endif
