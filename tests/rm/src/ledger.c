/* SPDX-License-Identifier: MIT */
#include "ledger.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "libc.h"

#define CLIENT_HANDLE_BASE 0xC2000000u
#define OBJECT_HANDLE_BASE 0xCAF00000u
#define LINEAR_BASE 0x380000000000u
#define VIOLATIONS_KEPT 64

struct view {
	struct view *next;
	const struct mapping *mapping; /* NULL once RM has forgotten it */
	uintptr_t start;
	uintptr_t end;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t owner;

static struct client *clients;
static struct view *views;
static uint32_t next_client = CLIENT_HANDLE_BASE;
static uint64_t next_linear = LINEAR_BASE;

static char violations[VIOLATIONS_KEPT][160];
static int violation_count;
static bool dropping_inherited;

void ledger_lock(void)
{
	pthread_mutex_lock(&lock);
}

void ledger_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

bool ledger_is_of_this_process(void)
{
	return getpid() == owner;
}

__attribute__((format(printf, 1, 2))) static void violation(const char *format, ...)
{
	char text[sizeof(violations[0])];
	va_list arguments;

	if (dropping_inherited)
		return;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	fprintf(stderr, "fakerm: violation: %s\n", text);
	if (violation_count < VIOLATIONS_KEPT)
		memcpy(violations[violation_count], text, sizeof(text));
	violation_count++;
}

/* Take one entry out of a singly linked list. */
#define UNLINK(head, entry)                                                                        \
	do {                                                                                       \
		__typeof__(head) *link_ = &(head);                                                 \
		while (*link_ != (entry))                                                          \
			link_ = &(*link_)->next;                                                   \
		*link_ = (entry)->next;                                                            \
	} while (0)

#define LINK(head, entry)                                                                          \
	do {                                                                                       \
		(entry)->next = (head);                                                            \
		(head) = (entry);                                                                  \
	} while (0)

struct client *client_add(const struct file_id *file)
{
	struct client *client = calloc(1, sizeof(*client));

	if (!client)
		return NULL;
	client->handle = next_client++;
	client->file = *file;
	LINK(clients, client);
	return client;
}

struct client *client_find(uint32_t handle)
{
	for (struct client *client = clients; client; client = client->next)
		if (client->handle == handle)
			return client;
	return NULL;
}

void client_free(struct client *client)
{
	while (client->devices)
		device_free(client, client->devices);
	UNLINK(clients, client);
	free(client);
}

bool client_has_handle(const struct client *client, uint32_t handle)
{
	struct device *device;

	for (device = client->devices; device; device = device->next)
		if (handle && (handle == device->subdevice || handle == device->subscription))
			return true;
	return handle == client->handle || (handle && handle == client->confidential) ||
	       device_find(client, handle) || object_find(client, handle, &device);
}

uint32_t client_new_handle(const struct client *client)
{
	uint32_t handle = OBJECT_HANDLE_BASE;

	while (client_has_handle(client, handle))
		handle++;
	return handle;
}

struct device *device_add(struct client *client, uint32_t handle, uint32_t instance, uint32_t share)
{
	struct device *device = calloc(1, sizeof(*device));

	if (!device)
		return NULL;
	device->handle = handle;
	device->instance = instance;
	device->share = share;
	LINK(client->devices, device);
	return device;
}

struct device *device_find(const struct client *client, uint32_t handle)
{
	for (struct device *device = client->devices; device; device = device->next)
		if (device->handle == handle)
			return device;
	return NULL;
}

void device_free(struct client *client, struct device *device)
{
	while (device->objects)
		object_free(device, device->objects);
	UNLINK(client->devices, device);
	free(device);
}

struct object *object_add(struct device *device, uint32_t handle, const struct memory *memory)
{
	struct object *object = calloc(1, sizeof(*object));

	if (!object)
		return NULL;
	object->handle = handle;
	object->memory = *memory;
	LINK(device->objects, object);
	return object;
}

struct object *object_find(const struct client *client, uint32_t handle, struct device **device)
{
	for (*device = client->devices; *device; *device = (*device)->next)
		for (struct object *object = (*device)->objects; object; object = object->next)
			if (object->handle == handle)
				return object;
	return NULL;
}

void object_free(struct device *device, struct object *object)
{
	while (object->mappings) {
		violation("object 0x%x freed with mapping 0x%llx on it", object->handle,
			  (unsigned long long)object->mappings->linear);
		mapping_free(object, object->mappings);
	}
	UNLINK(device->objects, object);
	memory_release(&object->memory);
	free(object);
}

struct mapping *mapping_add(struct object *object, size_t offset, size_t length,
			    const struct file_id *file)
{
	struct mapping *mapping = calloc(1, sizeof(*mapping));

	if (!mapping)
		return NULL;
	mapping->linear = next_linear;
	mapping->offset = offset;
	mapping->length = length;
	mapping->file = *file;
	next_linear += length;
	LINK(object->mappings, mapping);
	return mapping;
}

struct mapping *mapping_find(const struct object *object, uint64_t linear)
{
	for (struct mapping *mapping = object->mappings; mapping; mapping = mapping->next)
		if (mapping->linear == linear)
			return mapping;
	return NULL;
}

static struct mapping *mapping_of_file_in(const struct device *device, const struct file_id *file,
					  const struct object **object)
{
	for (*object = device->objects; *object; *object = (*object)->next)
		for (struct mapping *mapping = (*object)->mappings; mapping;
		     mapping = mapping->next)
			if (file_is(&mapping->file, file))
				return mapping;
	return NULL;
}

struct mapping *mapping_of_file(const struct file_id *file, const struct object **object)
{
	struct mapping *mapping = NULL;

	for (struct client *client = clients; client && !mapping; client = client->next)
		for (struct device *device = client->devices; device && !mapping;
		     device = device->next)
			mapping = mapping_of_file_in(device, file, object);
	return mapping;
}

void mapping_free(struct object *object, struct mapping *mapping)
{
	for (struct view *view = views; view; view = view->next) {
		if (view->mapping != mapping)
			continue;
		violation("mapping 0x%llx unmapped in RM before munmap of %#lx",
			  (unsigned long long)mapping->linear, (unsigned long)view->start);
		view->mapping = NULL;
	}
	UNLINK(object->mappings, mapping);
	free(mapping);
}

static bool view_add_range(const struct mapping *mapping, uintptr_t start, uintptr_t end)
{
	struct view *view = calloc(1, sizeof(*view));

	if (!view)
		return false;
	view->mapping = mapping;
	view->start = start;
	view->end = end;
	LINK(views, view);
	return true;
}

bool view_add(const struct mapping *mapping, void *address, size_t length)
{
	return view_add_range(mapping, (uintptr_t)address, (uintptr_t)address + length);
}

void view_remove(void *address, size_t length)
{
	uintptr_t page = getpagesize();
	uintptr_t start = (uintptr_t)address;
	uintptr_t end = start + ((length + page - 1) & ~(page - 1));
	struct view *view, *next;

	for (view = views; view; view = next) {
		next = view->next;
		if (view->end <= start || end <= view->start)
			continue;
		if (end < view->end)
			view_add_range(view->mapping, end, view->end);
		if (view->start < start) {
			view->end = start;
			continue;
		}
		UNLINK(views, view);
		free(view);
	}
}

bool ledger_has_views(void)
{
	return __atomic_load_n(&views, __ATOMIC_RELAXED);
}

bool ledger_has_clients(void)
{
	return __atomic_load_n(&clients, __ATOMIC_RELAXED);
}

void ledger_reap(void)
{
	struct client *client, *next;

	for (client = clients; client; client = next) {
		next = client->next;
		if (files_open_of(&client->file))
			continue;
		violation("control file closed with client 0x%x on it", client->handle);
		client_free(client);
	}
}

struct totals {
	int clients;
	int devices;
	int objects;
	int mappings;
	int views;
};

static void add_device(struct totals *totals, const struct device *device)
{
	totals->devices++;
	for (struct object *object = device->objects; object; object = object->next) {
		totals->objects++;
		for (struct mapping *mapping = object->mappings; mapping; mapping = mapping->next)
			totals->mappings++;
	}
}

int ledger_count(const char *what)
{
	struct totals totals = {0};

	for (struct client *client = clients; client; client = client->next) {
		totals.clients++;
		for (struct device *device = client->devices; device; device = device->next)
			add_device(&totals, device);
	}
	for (struct view *view = views; view; view = view->next)
		totals.views++;

	if (!strcmp(what, "clients"))
		return totals.clients;
	if (!strcmp(what, "devices"))
		return totals.devices;
	if (!strcmp(what, "objects"))
		return totals.objects;
	if (!strcmp(what, "mappings"))
		return totals.mappings;
	if (!strcmp(what, "views"))
		return totals.views;
	if (!strcmp(what, "files"))
		return files_open();
	if (!strcmp(what, "violations"))
		return violation_count;
	return -1;
}

const char *ledger_violation(int index)
{
	if (index < 0 || index >= violation_count || index >= VIOLATIONS_KEPT)
		return NULL;
	return violations[index];
}

static void forget_inherited_view(struct view *view)
{
	/* msync tells whether the range is there at all. */
	if (!msync((void *)view->start, view->end - view->start, MS_ASYNC))
		violation("view %#lx inherited by a forked child", (unsigned long)view->start);
	free(view);
}

static void start_in_child(void)
{
	violation_count = 0;
	while (views) {
		struct view *view = views;

		views = view->next;
		forget_inherited_view(view);
	}

	/* All of it lives on in the parent, so dropping it here breaks no rule. */
	dropping_inherited = true;
	while (clients)
		client_free(clients);
	dropping_inherited = false;

	owner = getpid();
	ledger_unlock();
}

void ledger_init(void)
{
	owner = getpid();
	pthread_atfork(ledger_lock, ledger_unlock, start_in_child);
}
