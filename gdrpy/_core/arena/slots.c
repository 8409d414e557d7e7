/* SPDX-License-Identifier: MIT */
/* A pair of functions for each slot: the libraries pass no argument that identifies the arena. */
#include <sys/types.h>

#include "arena/arena.h"

#define SLOT(number)                                                                               \
	GDRPY_ARENA_API void *gdrpy_arena_alloc_##number(ssize_t nbytes, int device, void *stream) \
	{                                                                                          \
		(void)stream;                                                                      \
		return gdrpy_arena_allocate_for(number, nbytes, device);                           \
	}                                                                                          \
	GDRPY_ARENA_API void gdrpy_arena_free_##number(void *block, ssize_t nbytes, int device,    \
						       void *stream)                               \
	{                                                                                          \
		(void)nbytes;                                                                      \
		(void)device;                                                                      \
		gdrpy_arena_free_for(number, block, stream);                                       \
	}

#define TEN_SLOTS(tens)                                                                            \
	SLOT(tens##0)                                                                              \
	SLOT(tens##1)                                                                              \
	SLOT(tens##2)                                                                              \
	SLOT(tens##3)                                                                              \
	SLOT(tens##4)                                                                              \
	SLOT(tens##5)                                                                              \
	SLOT(tens##6)                                                                              \
	SLOT(tens##7)                                                                              \
	SLOT(tens##8)                                                                              \
	SLOT(tens##9)

TEN_SLOTS()
TEN_SLOTS(1)
TEN_SLOTS(2)
TEN_SLOTS(3)
TEN_SLOTS(4)
TEN_SLOTS(5)
SLOT(60)
SLOT(61)
SLOT(62)
SLOT(63)

_Static_assert(GDRPY_ARENA_SLOTS == 64, "one pair of functions for each slot");
