/* SPDX-License-Identifier: MIT */
#include "copy/private.h"

/* Routines for copies of up to small->best_up_to bytes, and for larger ones. */
struct choice {
	const struct core_copy_routine *small;
	const struct core_copy_routine *large;
};

static struct choice to_wc, from_wc;

static const struct core_copy_routine *first_supported(const struct core_copy_routine *table,
						       size_t nbytes)
{
	while (!table->supported() || nbytes > table->best_up_to)
		table++;
	return table;
}

/*
 * Runs while the library loads, so that copies need not check. Priority 101 is earlier than every
 * constructor that might copy.
 */
__attribute__((constructor(101))) static void choose_routines(void)
{
	to_wc.small = first_supported(core_routines_to_wc, 0);
	to_wc.large = first_supported(core_routines_to_wc, SIZE_MAX);
	from_wc.small = first_supported(core_routines_from_wc, 0);
	from_wc.large = first_supported(core_routines_from_wc, SIZE_MAX);
}

static inline const struct core_copy_routine *pick(const struct choice *choice, size_t nbytes)
{
	return nbytes <= choice->small->best_up_to ? choice->small : choice->large;
}

static inline bool is_word(const void *mapping, size_t nbytes)
{
	bool has_word_size = nbytes == 1 || nbytes == 2 || nbytes == 4 || nbytes == 8;

	return has_word_size && ((uintptr_t)mapping & (nbytes - 1)) == 0;
}

#define MOVE_WORD(move, word)                                                                      \
	switch ((word)->left) {                                                                    \
	case 1:                                                                                    \
		move(word, core_u8);                                                               \
		break;                                                                             \
	case 2:                                                                                    \
		move(word, core_u16);                                                              \
		break;                                                                             \
	case 4:                                                                                    \
		move(word, core_u32);                                                              \
		break;                                                                             \
	default:                                                                                   \
		move(word, core_u64);                                                              \
	}

static inline void put_word(struct core_cursor word)
{
	MOVE_WORD(CORE_PUT, &word);
}

static inline void get_word(struct core_cursor word)
{
	MOVE_WORD(CORE_GET, &word);
}

void core_copy_to(enum core_mapping_kind type, void *mapping, const void *host, size_t nbytes)
{
	if (is_word(mapping, nbytes))
		put_word((struct core_cursor){mapping, (unsigned char *)host, nbytes});
	else if (type == CORE_MAPPING_WC)
		pick(&to_wc, nbytes)->copy(mapping, host, nbytes);
	else if (type == CORE_MAPPING_CACHED)
		memcpy(mapping, host, nbytes);
	else
		core_portable_to_mapping(mapping, host, nbytes);
}

/* Only arm64 lets stores overtake earlier loads. */
static void end_loads(void)
{
#if defined(__aarch64__)
	core_load_fence();
#endif
}

void core_copy_from(enum core_mapping_kind type, void *host, const void *mapping, size_t nbytes)
{
	if (type == CORE_MAPPING_CACHED)
		__atomic_thread_fence(__ATOMIC_ACQUIRE);

	if (is_word(mapping, nbytes)) {
		if (type != CORE_MAPPING_CACHED)
			core_load_fence();
		get_word((struct core_cursor){(unsigned char *)mapping, host, nbytes});
	} else if (type == CORE_MAPPING_WC) {
		pick(&from_wc, nbytes)->copy(host, mapping, nbytes);
	} else if (type == CORE_MAPPING_CACHED) {
		memcpy(host, mapping, nbytes);
	} else {
		core_portable_from_mapping(host, mapping, nbytes);
	}
	end_loads();
}

const char *core_routine_to_wc(size_t nbytes)
{
	return pick(&to_wc, nbytes)->name;
}

const char *core_routine_from_wc(size_t nbytes)
{
	return pick(&from_wc, nbytes)->name;
}
