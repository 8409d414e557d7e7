/* SPDX-License-Identifier: MIT */
#include "ledger.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "channel.h"
#include "clock.h"
#include "dma.h"
#include "engine.h"
#include "event.h"
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

struct texts {
	char kept[VIOLATIONS_KEPT][160];
	int count;
};

static struct texts violations, xids;
static int entries, transfers;
static bool dropping_inherited;

/* A device node that speaks for a control file. */
struct registration {
	struct registration *next;
	struct file_id file, control;
};

static struct registration *registrations;
static int waiting; /* for the lock */

void ledger_lock(void)
{
	__atomic_fetch_add(&waiting, 1, __ATOMIC_RELAXED);
	pthread_mutex_lock(&lock);
	__atomic_fetch_sub(&waiting, 1, __ATOMIC_RELAXED);
}

void ledger_pause(void)
{
	ledger_unlock();
	while (__atomic_load_n(&waiting, __ATOMIC_RELAXED))
		sched_yield();
	ledger_lock();
}

bool ledger_is_dropping(void)
{
	return dropping_inherited;
}

void ledger_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

bool ledger_is_of_this_process(void)
{
	return getpid() == owner;
}

static void tell(struct texts *texts, const char *kind, const char *format, va_list arguments)
{
	char text[sizeof(texts->kept[0])];

	if (dropping_inherited)
		return;
	vsnprintf(text, sizeof(text), format, arguments);
	fprintf(stderr, "fakerm: %s: %s\n", kind, text);
	if (texts->count < VIOLATIONS_KEPT)
		memcpy(texts->kept[texts->count], text, sizeof(text));
	texts->count++;
}

void ledger_violation_add(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	tell(&violations, "violation", format, arguments);
	va_end(arguments);
}

void ledger_entry_add(void)
{
	__atomic_add_fetch(&entries, 1, __ATOMIC_RELAXED);
}

void ledger_transfer_add(void)
{
	__atomic_add_fetch(&transfers, 1, __ATOMIC_RELAXED);
}

void ledger_xid_add(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	tell(&xids, "Xid", format, arguments);
	va_end(arguments);
}

#define violation ledger_violation_add

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
	if (part_find_any(client, handle, &device))
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

struct device *device_of(const struct client *client, uint32_t handle)
{
	for (struct device *device = client->devices; device; device = device->next)
		if (device->handle == handle || (handle && device->subdevice == handle))
			return device;
	return NULL;
}

void device_free(struct client *client, struct device *device)
{
	while (device->parts)
		part_free(device, device->parts);
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
	object->parent = device->handle;
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
	channels_forget_memory(device, object->handle);
	dma_forget_memory(device, object->handle);
	UNLINK(device->objects, object);
	memory_release(&object->memory);
	free(object);
}

struct part *part_add(struct device *device, uint32_t handle, uint32_t parent, enum part_kind kind)
{
	struct part *part = calloc(1, sizeof(*part));

	if (!part)
		return NULL;
	part->handle = handle;
	part->parent = parent;
	part->kind = kind;
	part->fd = -1;
	LINK(device->parts, part);
	return part;
}

struct part *part_find_any(const struct client *client, uint32_t handle, struct device **device)
{
	for (*device = client->devices; *device; *device = (*device)->next)
		for (struct part *part = (*device)->parts; part; part = part->next)
			if (part->handle == handle)
				return part;
	return NULL;
}

struct part *part_find(const struct client *client, uint32_t handle, enum part_kind kind,
		       struct device **device)
{
	struct part *part = part_find_any(client, handle, device);

	return part && part->kind == kind ? part : NULL;
}

static struct part *child_of(const struct device *device, const struct part *parent)
{
	for (struct part *part = device->parts; part; part = part->next)
		if (part->parent == parent->handle ||
		    (parent->kind == PART_ADDRESS_SPACE && part->address_space == parent->handle))
			return part;
	return NULL;
}

void part_free(struct device *device, struct part *part)
{
	struct part *child;

	while ((child = child_of(device, part)))
		part_free(device, child);
	if (part->channel)
		engine_stop(part->channel);
	if (part->kind == PART_VIRTUAL)
		dma_forget_virtual(device, part->handle);
	UNLINK(device->parts, part);
	free(part);
}

bool ledger_control_of(const struct open_node *node, struct file_id *control)
{
	*control = node->file;
	if (node->node.kind == NODE_CONTROL)
		return true;
	for (struct registration *one = registrations; one; one = one->next)
		if (file_is(&one->file, &node->file)) {
			*control = one->control;
			return true;
		}
	return false;
}

bool ledger_is_registered(const struct file_id *file)
{
	for (struct registration *one = registrations; one; one = one->next)
		if (file_is(&one->file, file))
			return true;
	return false;
}

int ledger_register(const struct file_id *file, const struct file_id *control)
{
	struct registration *one;

	for (one = registrations; one; one = one->next)
		if (file_is(&one->file, file) || file_is(&one->file, control))
			return -EINVAL;
	one = calloc(1, sizeof(*one));
	if (!one)
		return -ENOMEM;
	one->file = *file;
	one->control = *control;
	LINK(registrations, one);
	return 0;
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

static void check_unmapped(const struct device *device, uintptr_t start, uintptr_t end)
{
	for (struct object *object = device->objects; object; object = object->next) {
		uintptr_t held = (uintptr_t)object->memory.hold;

		if (object->memory.kind == MEMORY_USER && held < end &&
		    start < held + object->memory.size)
			violation("munmap of %#lx, registered as object 0x%x", (unsigned long)start,
				  object->handle);
	}
}

void ledger_unmapped(void *address, size_t length)
{
	for (struct client *client = clients; client; client = client->next)
		for (struct device *device = client->devices; device; device = device->next)
			check_unmapped(device, (uintptr_t)address, (uintptr_t)address + length);
}

bool ledger_has_view_in(uint64_t address, uint64_t length)
{
	for (struct view *view = views; view; view = view->next)
		if (view->start < address + length && address < view->end)
			return true;
	return false;
}

bool ledger_has_views(void)
{
	return __atomic_load_n(&views, __ATOMIC_RELAXED);
}

bool ledger_has_clients(void)
{
	return __atomic_load_n(&clients, __ATOMIC_RELAXED);
}

/* A node that speaks for a control file keeps it open. */
static bool control_is_open(const struct file_id *control)
{
	if (files_open_of(control))
		return true;
	for (struct registration *one = registrations; one; one = one->next)
		if (file_is(&one->control, control))
			return true;
	return false;
}

void ledger_reap(void)
{
	struct registration *one, *following;
	struct client *client, *next;

	for (one = registrations; one; one = following) {
		following = one->next;
		if (files_open_of(&one->file) || event_has_node(&one->file))
			continue;
		UNLINK(registrations, one);
		free(one);
	}
	for (client = clients; client; client = next) {
		next = client->next;
		if (control_is_open(&client->file))
			continue;
		violation("control file closed with client 0x%x on it", client->handle);
		client_free(client);
	}
}

int ledger_count(const char *what)
{
	int client_count = 0, devices = 0, objects = 0, mappings = 0, view_count = 0, parts = 0;
	int channels = 0, dma_mappings = 0;

	for (struct client *client = clients; client; client = client->next, client_count++)
		for (struct device *device = client->devices; device; device = device->next) {
			devices++;
			for (struct object *one = device->objects; one; one = one->next, objects++)
				for (struct mapping *m = one->mappings; m; m = m->next)
					mappings++;
			for (struct part *part = device->parts; part; part = part->next, parts++)
				channels += part->kind == PART_CHANNEL;
			dma_mappings += dma_count(device);
		}
	for (struct view *view = views; view; view = view->next)
		view_count++;

	const struct {
		const char *what;
		int count;
	} counts[] = {
		{"clients", client_count},
		{"devices", devices},
		{"objects", objects},
		{"mappings", mappings},
		{"views", view_count},
		{"files", strcmp(what, "files") ? 0 : files_open()},
		{"violations", violations.count},
		{"parts", parts},
		{"channels", channels},
		{"dma_mappings", dma_mappings},
		{"xids", xids.count},
		{"entries", __atomic_load_n(&entries, __ATOMIC_RELAXED)},
		{"transfers", __atomic_load_n(&transfers, __ATOMIC_RELAXED)},
		{"stalls", clock_stalls()},
		{"sleepers", event_sleepers()},
		{"wakes", event_wakes()},
	};

	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
		if (!strcmp(what, counts[i].what))
			return counts[i].count;
	return -1;
}

static const char *text_of(const struct texts *texts, int index)
{
	if (index < 0 || index >= texts->count || index >= VIOLATIONS_KEPT)
		return NULL;
	return texts->kept[index];
}

const char *ledger_violation(int index)
{
	return text_of(&violations, index);
}

const char *ledger_xid(int index)
{
	return text_of(&xids, index);
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
	violations.count = 0;
	xids.count = 0;
	while (views) {
		struct view *view = views;

		views = view->next;
		forget_inherited_view(view);
	}

	/* All of it lives on in the parent, so dropping it here breaks no rule. */
	dropping_inherited = true;
	while (clients)
		client_free(clients);
	while (registrations) {
		struct registration *one = registrations;

		registrations = one->next;
		free(one);
	}
	event_start_in_child();
	dropping_inherited = false;
	waiting = 0;

	owner = getpid();
	ledger_unlock();
}

void ledger_init(void)
{
	owner = getpid();
	pthread_atfork(ledger_lock, ledger_unlock, start_in_child);
}
