// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The resource manager under NVIDIA's nv-p2p.c: who has pinned what. It keeps the rules of the
 * genuine one, the awkward ones too: without a token it looks at pins of the calling process alone,
 * and at nothing but their key; with a token a put of a key that it does not know succeeds; the
 * callback ends before the key is forgotten.
 */
#include <linux/err.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/wait.h>

#include "standin.h"

struct pin {
	struct list_head list;
	const struct registration *registration; /* NULL: persistent */
	struct block *block;
	u32 entries;
	void *key;
	void (*callback)(void *data);
	void *data;
};

static LIST_HEAD(pins);
/* Taken away before their callback was there: nv-p2p.c forgets the tables of these. */
static LIST_HEAD(lost);
static u32 next_status;
static u32 free_in_get;
static u32 hold;
static DECLARE_WAIT_QUEUE_HEAD(let_go);

static const struct {
	u32 status;
	int error;
} statuses[] = {
	{NV_OK, 0},
	{NV_ERR_GENERIC, EIO},
	{NV_ERR_INVALID_ARGUMENT, EINVAL},
	{NV_ERR_NO_MEMORY, ENOMEM},
	{NV_ERR_NOT_SUPPORTED, 524},
	{NV_ERR_OBJECT_NOT_FOUND, EINVAL},
	{NV_ERR_STATE_IN_USE, EBUSY},
};

int rm_error(u32 status)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(statuses); i++) {
		if (statuses[i].status == status)
			return -statuses[i].error;
	}
	return -EIO;
}

int rm_fail_next_get(int error)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(statuses); i++) {
		if (statuses[i].error == error) {
			next_status = statuses[i].status;
			return 0;
		}
	}
	return -EINVAL;
}

int rm_free_in_next_get(u32 when)
{
	if (when > GPUSTANDIN_AFTER_CALLBACK)
		return -EINVAL;
	free_in_get = when;
	return 0;
}

int rm_hold_callbacks(u32 wanted)
{
	if (wanted > 1)
		return -EINVAL;
	WRITE_ONCE(hold, wanted);
	wake_up_all(&let_go);
	return 0;
}

static void count_pin(const struct pin *pin, int sign)
{
	stats.pinned_pages += sign * (int)pin->entries;
	if (pin->registration)
		stats.pins += sign;
	else
		stats.persistent_pins += sign;
}

static void pin_end(struct pin *pin)
{
	list_del(&pin->list);
	count_pin(pin, -1);
	block_put(pin->block);
}

static struct pin *pin_find(const void *key, bool persistent)
{
	struct pin *pin;

	list_for_each_entry(pin, &pins, list) {
		if (pin->key == key && persistent == !pin->registration)
			return pin;
	}
	return NULL;
}

static bool is_ours(const struct pin *pin)
{
	return pin->registration->process == task_tgid(current);
}

u32 rm_find(u64 address, u64 length, u32 *ordinal)
{
	const struct registration *registration;

	if (!standin_lock())
		return NV_ERR_STATE_IN_USE;
	registration = registration_find(0, address, length);
	if (registration)
		*ordinal = registration->block->ordinal;
	standin_unlock();
	return registration ? NV_OK : NV_ERR_OBJECT_NOT_FOUND;
}

static u32 pin_new(const struct rm_get *get, u64 *physical)
{
	struct registration *registration;
	u32 status = next_status;
	struct pin *pin;
	u32 first, i;

	next_status = NV_OK;
	if (status != NV_OK)
		return status;
	registration = registration_find(get->token, get->address, get->length);
	if (!registration)
		return NV_ERR_OBJECT_NOT_FOUND;
	pin = kzalloc(sizeof(*pin), GFP_KERNEL);
	if (!pin)
		return NV_ERR_NO_MEMORY;

	first = (get->address - registration->address) / GPUSTANDIN_PAGE;
	pin->entries = get->length / GPUSTANDIN_PAGE;
	for (i = 0; i < pin->entries; i++)
		physical[i] = block_physical(registration->block, first + i);
	pin->block = registration->block;
	pin->block->references++;
	pin->registration = get->persistent ? NULL : registration;
	pin->key = get->key;
	list_add(&pin->list, &pins);
	count_pin(pin, 1);
	if (!get->persistent && free_in_get == GPUSTANDIN_BEFORE_CALLBACK)
		rm_revoke(registration);
	return NV_OK;
}

u32 rm_get_pages(const struct rm_get *get, u64 *physical)
{
	u32 status;

	if (!get->length || get->address % GPUSTANDIN_PAGE || get->length % GPUSTANDIN_PAGE)
		return NV_ERR_INVALID_ARGUMENT;
	if (!standin_lock())
		return NV_ERR_STATE_IN_USE;
	stats.gets++;
	status = pin_new(get, physical);
	standin_unlock();
	return status;
}

u32 rm_register_callback(void *key, void (*callback)(void *data), void *data)
{
	u32 status = NV_ERR_OBJECT_NOT_FOUND;
	struct pin *pin;

	if (!standin_lock())
		return NV_ERR_STATE_IN_USE;
	pin = pin_find(key, false);
	if (pin) {
		pin->callback = callback;
		pin->data = data;
		status = NV_OK;
		if (free_in_get == GPUSTANDIN_AFTER_CALLBACK)
			rm_revoke(pin->registration);
	}
	free_in_get = GPUSTANDIN_NOT_IN_GET;
	standin_unlock();
	return status;
}

u32 rm_put_pages(u64 token, void *key)
{
	u32 status = NV_ERR_OBJECT_NOT_FOUND;
	struct pin *pin;

	if (!standin_lock())
		return NV_ERR_STATE_IN_USE;
	pin = pin_find(key, false);
	if (pin && !token && !is_ours(pin))
		pin = NULL;
	if (pin) {
		pin_end(pin);
		kfree(pin);
	}
	if (pin || (token && registration_of_token(token)))
		status = NV_OK;
	else
		stats.late_puts++;
	standin_unlock();
	return status;
}

u32 rm_put_pages_persistent(void *key)
{
	struct pin *pin;

	if (!standin_lock())
		return NV_ERR_STATE_IN_USE;
	pin = pin_find(key, true);
	if (pin) {
		pin_end(pin);
		kfree(pin);
	}
	standin_unlock();
	return pin ? NV_OK : NV_ERR_INVALID_ARGUMENT;
}

/*
 * To lockdep the callback is made by memory reclaim: so it reports whoever allocates, and may wait
 * for reclaim, under a lock that the callback takes.
 */
static void call_back(const struct pin *pin)
{
	fs_reclaim_acquire(GFP_KERNEL);
	pin->callback(pin->data);
	fs_reclaim_release(GFP_KERNEL);
	stats.callbacks++;
}

/* The driver's lock is held throughout, as the genuine one's is. */
void rm_revoke(const struct registration *registration)
{
	struct pin *pin, *next;

	list_for_each_entry_safe(pin, next, &pins, list) {
		if (pin->registration != registration)
			continue;
		stats.held_callbacks++;
		WARN(!wait_event_timeout(let_go, !READ_ONCE(hold), 30 * HZ), "nobody let go");
		stats.held_callbacks--;
		if (pin->callback)
			call_back(pin);
		pin_end(pin);
		if (pin->callback) {
			kfree(pin);
		} else {
			list_add(&pin->list, &lost);
			stats.lost_tables++;
		}
	}
}

void rm_exit(void)
{
	struct pin *pin, *next;

	list_for_each_entry_safe(pin, next, &lost, list) {
		p2p_free_lost(pin->key);
		kfree(pin);
	}
}
