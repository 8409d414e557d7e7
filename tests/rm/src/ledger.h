/* SPDX-License-Identifier: MIT */
/*
 * The existing objects, and the violations of the driver's rules.
 *
 *   client -> device -> memory object -> mapping (RM_MAP_MEMORY) <- view (mmap)
 *
 * Objects that have nothing below them are handles in their parent: 0, or what they are called.
 * The other objects of a device, channels and what they take, are its parts.
 *
 * A violation is something that the driver lets pass and a careful program does not do: an unmap
 * before the munmap, a free of what is still mapped, a control file closed with a client on it.
 * Each is also told on stderr.
 *
 * All calls with the lock held, except ledger_init.
 */
#ifndef FAKERM_LEDGER_H
#define FAKERM_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "memory.h"
#include "nodes.h"

struct mapping {
	struct mapping *next;
	uint64_t linear; /* the driver's name for it */
	size_t offset;
	size_t length;
	struct file_id file; /* the descriptor that mmap takes it from */
};

struct object {
	struct object *next;
	uint32_t handle;
	uint32_t parent;
	struct memory memory;
	struct mapping *mappings;
};

enum part_kind {
	PART_ADDRESS_SPACE,
	PART_VIRTUAL,
	PART_GROUP,
	PART_CHANNEL,
	PART_COPY,
	PART_EVENT,
};

struct part {
	struct part *next;
	uint32_t handle;
	uint32_t parent;
	enum part_kind kind;
	uint32_t address_space; /* of a virtual, a group, a channel; 0 for the device's own */
	uint32_t engine;	/* of a group, a channel, a copy object, an event */
	uint64_t timeslice;	/* of a group, in microseconds */
	bool scheduled;		/* a group */
	struct channel *channel;
	int fd; /* an event's */
};

struct device {
	struct device *next;
	uint32_t handle;
	uint32_t instance;
	uint32_t share;	       /* the client whose address space it uses */
	uint32_t subdevice;    /* a handle */
	uint32_t subscription; /* a handle, below that: to the MIG instance */
	struct object *objects;
	struct part *parts;
	struct dma_mapping *dma_mappings;
};

struct client {
	struct client *next;
	uint32_t handle;
	struct file_id file;   /* the control file it was made on, and lives on */
	uint32_t confidential; /* a handle */
	struct device *devices;
};

/* After this a forked child starts with an empty ledger: its parent's clients are not its own. */
void ledger_init(void);

void ledger_lock(void);
void ledger_unlock(void);

/*
 * False in a child made without fork handlers (vfork, clone): it may share the parent's memory. The
 * ledger ignores what it does to its own descriptors and address space.
 */
bool ledger_is_of_this_process(void);

/* The makers return NULL when out of memory. */
struct client *client_add(const struct file_id *file);
struct client *client_find(uint32_t handle);
void client_free(struct client *client);

/* A handle that nothing in the client has. */
uint32_t client_new_handle(const struct client *client);
bool client_has_handle(const struct client *client, uint32_t handle);

struct device *device_add(struct client *client, uint32_t handle, uint32_t instance,
			  uint32_t share);
struct device *device_find(const struct client *client, uint32_t handle);
void device_free(struct client *client, struct device *device);

/* Takes over the memory. */
struct object *object_add(struct device *device, uint32_t handle, const struct memory *memory);
struct object *object_find(const struct client *client, uint32_t handle, struct device **device);
void object_free(struct device *device, struct object *object);

struct part *part_add(struct device *device, uint32_t handle, uint32_t parent, enum part_kind kind);
/* NULL unless the client has a part of this kind and name. */
struct part *part_find(const struct client *client, uint32_t handle, enum part_kind kind,
		       struct device **device);
struct part *part_find_any(const struct client *client, uint32_t handle, struct device **device);
/* And what lies below it. */
void part_free(struct device *device, struct part *part);

/* The device that has this handle, or whose subdevice has. */
struct device *device_of(const struct client *client, uint32_t handle);

/* The control file that an open node speaks for: it itself, or the one that it was registered to.
 * False for a device's node that was not. */
bool ledger_control_of(const struct open_node *node, struct file_id *control);
bool ledger_is_registered(const struct file_id *file);
/* 0, or a negative errno. */
int ledger_register(const struct file_id *file, const struct file_id *control);

struct mapping *mapping_add(struct object *object, size_t offset, size_t length,
			    const struct file_id *file);
struct mapping *mapping_find(const struct object *object, uint64_t linear);
struct mapping *mapping_of_file(const struct file_id *file, const struct object **object);
void mapping_free(struct object *object, struct mapping *mapping);

/* Views: address ranges that mmap gave out. Removing a range may trim or split them. */
bool view_add(const struct mapping *mapping, void *address, size_t length);
void view_remove(void *address, size_t length);
bool ledger_has_views(void);
bool ledger_has_view_in(uint64_t address, uint64_t length);

/* The process unmaps a range: pages that are registered should not be among it. */
void ledger_unmapped(void *address, size_t length);

/* Free the clients whose control file has been closed. */
void ledger_reap(void);
bool ledger_has_clients(void);

/* Tell of a wrong that the driver lets pass, or of a channel's death. */
__attribute__((format(printf, 1, 2))) void ledger_violation_add(const char *format, ...);
__attribute__((format(printf, 1, 2))) void ledger_xid_add(const char *format, ...);
/* Count an entry of a channel's ring that is worked off. */
void ledger_entry_add(void);
void ledger_transfer_add(void);

/* Let the threads that wait for the lock run. */
void ledger_pause(void);

/* A child is forgetting what it inherited; its parent's threads are not there. */
bool ledger_is_dropping(void);

/* -1 for an unknown word. */
int ledger_count(const char *what);
const char *ledger_violation(int index);
const char *ledger_xid(int index);

#endif
