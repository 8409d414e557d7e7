/* SPDX-License-Identifier: MIT */
/* An array of objects, sorted by a 64-bit key: an address or a handle. It does not own them. */
#ifndef GDRPY_SIM_TABLE_H
#define GDRPY_SIM_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct table {
	struct table_entry {
		uint64_t key;
		void *value;
	} *entries;
	size_t count;
	size_t capacity;
};

/* The index of the first entry whose key is not below `key`. */
size_t table_lower_bound(const struct table *table, uint64_t key);

void *table_find(const struct table *table, uint64_t key);

/* The object with the greatest key that is not above `key`. */
void *table_floor(const struct table *table, uint64_t key);

/* False without memory. The key must be new. */
bool table_insert(struct table *table, uint64_t key, void *value);

void table_remove(struct table *table, uint64_t key);

#endif
