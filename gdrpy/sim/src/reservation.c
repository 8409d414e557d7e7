/* SPDX-License-Identifier: MIT */
#include "reservation.h"

#include <stdlib.h>

#include "address.h"
#include "range.h"
#include "table.h"

static struct table reservations;

struct reservation *reservation_at(uint64_t address)
{
	struct reservation *reservation = table_floor(&reservations, address);

	return reservation && address - reservation->start < reservation->size ? reservation : NULL;
}

CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr wish,
			     unsigned long long flags)
{
	struct reservation *reservation;

	API(cuMemAddressReserve, NEEDS_INIT);

	if (!pointer || !size || size % SIM_GRANULARITY || flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (alignment & (alignment - 1) || wish % SIM_GRANULARITY)
		return CUDA_ERROR_INVALID_VALUE;
	if (alignment < SIM_GRANULARITY)
		alignment = SIM_GRANULARITY;

	reservation = malloc(sizeof(*reservation));
	if (!reservation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	reservation->size = size;
	reservation->start = address_reserve(size, alignment, wish);
	if (!reservation->start)
		goto free_reservation;
	if (!table_insert(&reservations, reservation->start, reservation))
		goto release_addresses;
	*pointer = reservation->start;
	return CUDA_SUCCESS;

release_addresses:
	address_release(reservation->start, size);
free_reservation:
	free(reservation);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size)
{
	struct reservation *reservation;

	API(cuMemAddressFree, NEEDS_INIT);

	reservation = table_find(&reservations, pointer);
	if (!reservation || reservation->size != size || range_overlaps(pointer, size))
		return CUDA_ERROR_INVALID_VALUE;
	table_remove(&reservations, pointer);
	address_release(pointer, size);
	free(reservation);
	return CUDA_SUCCESS;
}
