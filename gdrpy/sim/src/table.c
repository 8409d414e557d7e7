/* SPDX-License-Identifier: MIT */
#include "table.h"

#include <stdlib.h>
#include <string.h>

size_t table_lower_bound(const struct table *table, uint64_t key)
{
	size_t low = 0, high = table->count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (table->entries[middle].key < key)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

void *table_find(const struct table *table, uint64_t key)
{
	size_t i = table_lower_bound(table, key);

	if (i == table->count || table->entries[i].key != key)
		return NULL;
	return table->entries[i].value;
}

void *table_floor(const struct table *table, uint64_t key)
{
	size_t i = table_lower_bound(table, key);

	if (i < table->count && table->entries[i].key == key)
		return table->entries[i].value;
	return i ? table->entries[i - 1].value : NULL;
}

bool table_insert(struct table *table, uint64_t key, void *value)
{
	size_t i = table_lower_bound(table, key);

	if (table->count == table->capacity) {
		size_t capacity = table->capacity ? 2 * table->capacity : 16;
		struct table_entry *entries =
			realloc(table->entries, capacity * sizeof(*table->entries));

		if (!entries)
			return false;
		table->entries = entries;
		table->capacity = capacity;
	}
	memmove(&table->entries[i + 1], &table->entries[i],
		(table->count - i) * sizeof(*table->entries));
	table->entries[i] = (struct table_entry){key, value};
	table->count++;
	return true;
}

void table_remove(struct table *table, uint64_t key)
{
	size_t i = table_lower_bound(table, key);

	table->count--;
	memmove(&table->entries[i], &table->entries[i + 1],
		(table->count - i) * sizeof(*table->entries));
}
