// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Pins: creation, lookup, revocation, end. */
#include <linux/capability.h>
#include <linux/err.h>
#include <linux/module.h>
#include <linux/overflow.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/xarray.h>

#include "gdrdrv.h"
#include "trace.h"

/*
 * Gets and puts run one at a time. A put finds its pages only by the address of their table, which
 * another pin may have soon after the free callback: no pin of this module may get pages between
 * the check for that callback and the put. Also, nvidia.ko allocates for the requested length,
 * without charging the user, before it checks the address: only one such allocation exists at a
 * time.
 */
static DEFINE_MUTEX(gdrdrv_p2p_lock);

/*
 * The pins registered at nvidia.ko, by numbers that are never reused. nvidia.ko identifies a pin
 * only by its number: if a process leaves the GPU memory's list of processes before a put, the put
 * returns success, but the callback still comes later.
 */
static DEFINE_XARRAY(gdrdrv_registrations);
static unsigned long gdrdrv_last_registration;

/* The pin of a registration, with a reference, or NULL. */
static struct gdrdrv_pin *gdrdrv_registration_get(unsigned long number)
{
	struct gdrdrv_pin *pin;

	xa_lock(&gdrdrv_registrations);
	pin = xa_load(&gdrdrv_registrations, number);
	if (pin)
		get_file(pin->file);
	xa_unlock(&gdrdrv_registrations);
	return pin;
}

/* Call only after the state makes the fault handler refuse. */
static void gdrdrv_pin_zap(struct gdrdrv_pin *pin)
{
	unmap_mapping_range(pin->file->f_mapping, 0, 0, 1);
	/* Pairs with gdrdrv_pin_has_ended(). */
	smp_store_release(&pin->zapped, true);
	wake_up_interruptible_poll(&pin->wait, EPOLLHUP | EPOLLERR);
}

/* Call after the zap, and before nvidia.ko gets the memory back. */
static void gdrdrv_pin_release_type(struct gdrdrv_pin *pin)
{
	mutex_lock(&pin->lock);
	if (pin->pages.held)
		gdrdrv_pages_release_type(&pin->pages);
	pin->pages.held = false;
	mutex_unlock(&pin->lock);
}

/* Called by both the callback and the put; the first one ends the registration. */
static void gdrdrv_pin_unregister(struct gdrdrv_pin *pin)
{
	unsigned long number;

	mutex_lock(&pin->lock);
	number = pin->registration;
	pin->registration = 0;
	pin->pages.table = NULL;
	mutex_unlock(&pin->lock);
	if (!number)
		return;
	xa_erase(&gdrdrv_registrations, number);
	gdrdrv_quota_uncharge(pin->user, pin->pages.length);
	gdrdrv_pin_put(pin);
}

/* The event comes last: its reader finds the mappings gone and the quota uncharged. */
static void gdrdrv_pin_tell_revocation(struct gdrdrv_pin *pin)
{
	gdrdrv_count(GDRDRV_COUNT_REVOCATIONS);
	trace_gdrdrv_revoke(pin);
	mutex_lock(&pin->lock);
	if (pin->gfile)
		gdrdrv_event_post(&pin->gfile->events, GDRDRV_EVENT_REVOKED, pin->handle);
	mutex_unlock(&pin->lock);
}

/*
 * nvidia.ko calls this with its lock held, before it frees the memory and the table. The zap is
 * outside our lock, because it calls MMU notifiers, including nvidia-uvm's. It is done even during
 * an unpin, which may not have reached its own zap yet.
 */
static void gdrdrv_pin_memory_freed(void *data)
{
	struct gdrdrv_pin *pin = gdrdrv_registration_get((unsigned long)data);
	bool was_live;

	if (!pin)
		return;

	mutex_lock(&pin->lock);
	was_live = pin->state == GDRDRV_PIN_LIVE;
	if (was_live)
		pin->state = GDRDRV_PIN_REVOKED;
	mutex_unlock(&pin->lock);

	gdrdrv_pin_zap(pin);
	gdrdrv_pin_release_type(pin);
	gdrdrv_pin_unregister(pin);
	if (was_live)
		gdrdrv_pin_tell_revocation(pin);
	gdrdrv_pin_put(pin);
}

static int gdrdrv_pin_register(struct gdrdrv_pin *pin)
{
	struct nvidia_p2p_page_table *table;
	unsigned long number;
	u64 start;
	int ret;

	ret = mutex_lock_killable(&gdrdrv_p2p_lock);
	if (ret)
		return ret;

	number = ++gdrdrv_last_registration;
	ret = xa_insert(&gdrdrv_registrations, number, pin, GFP_KERNEL_ACCOUNT);
	if (ret)
		goto unlock;

	get_file(pin->file);
	pin->registration = number;
	start = gdrdrv_cycles();
	ret = gdrdrv_pages_get(&pin->pages, &table, gdrdrv_pin_memory_freed, (void *)number);
	pin->cycles = gdrdrv_cycles() - start;
	if (ret) {
		xa_erase(&gdrdrv_registrations, number);
		pin->registration = 0;
		gdrdrv_pin_put(pin);
		goto unlock;
	}

	mutex_lock(&pin->lock);
	/* The callback may have come already, and the table may be gone. */
	if (pin->registration)
		pin->pages.table = table;
	mutex_unlock(&pin->lock);

unlock:
	mutex_unlock(&gdrdrv_p2p_lock);
	return ret;
}

/*
 * A callback after a put needs this module's code. A process that may unload modules is trusted not
 * to cause one.
 */
static void gdrdrv_stay_loaded(void)
{
	static bool stays; /* gdrdrv_p2p_lock */

	if (stays || capable(CAP_SYS_MODULE))
		return;
	__module_get(THIS_MODULE);
	stays = true;
}

/*
 * A put of revocable pages by a process that did not pin them, such as the last one to close the
 * node, returns success without effect. Then, and if a put fails, the registration stays until the
 * callback ends it.
 */
static bool gdrdrv_pin_try_put(struct gdrdrv_pin *pin)
{
	struct nvidia_p2p_page_table *table;
	int ret;

	mutex_lock(&pin->lock);
	table = pin->pages.table;
	mutex_unlock(&pin->lock);
	if (!table)
		return false;
	if (!pin->pages.persistent && !gdrdrv_is_current(&pin->owner))
		return false;

	ret = gdrdrv_pages_put(&pin->pages, table);
	if (ret)
		pr_warn_ratelimited("gdrdrv: nvidia.ko does not take pages back: error %d\n", -ret);
	else if (!pin->pages.persistent)
		gdrdrv_stay_loaded();
	return !ret;
}

/* Ends a pin that has its pages, and drops the caller's reference. */
static void gdrdrv_pin_end(struct gdrdrv_pin *pin)
{
	mutex_lock(&pin->lock);
	if (pin->state == GDRDRV_PIN_LIVE)
		pin->state = GDRDRV_PIN_ENDED;
	pin->gfile = NULL;
	mutex_unlock(&pin->lock);

	gdrdrv_pin_zap(pin);
	gdrdrv_pin_release_type(pin);

	mutex_lock(&gdrdrv_p2p_lock);
	if (gdrdrv_pin_try_put(pin))
		gdrdrv_pin_unregister(pin);
	mutex_unlock(&gdrdrv_p2p_lock);
	gdrdrv_pin_put(pin);
}

/* Rounds the range out to GPU pages. */
static int gdrdrv_pin_set_range(struct gdrdrv_pin *pin, u64 addr, u64 size)
{
	const u64 mask = GDRDRV_GPU_PAGE_SIZE - 1;
	u64 end;

	if (!addr || !size || check_add_overflow(addr, size, &end) ||
	    check_add_overflow(end, mask, &end))
		return -EINVAL;

	pin->offset = addr & mask;
	pin->pages.va = addr & ~mask;
	pin->pages.length = (end & ~mask) - pin->pages.va;
	return pin->pages.length > GDRDRV_MAX_PIN_BYTES ? -EINVAL : 0;
}

static struct gdrdrv_pin *gdrdrv_pin_alloc(struct gdrdrv_file *gfile,
					   const struct gdrdrv_pin_request *request)
{
	struct gdrdrv_pin *pin;
	int ret;

	if (request->force_pcie && !(request->persistent && gdrdrv_force_pcie_supported()))
		return ERR_PTR(-EOPNOTSUPP);

	pin = kzalloc(sizeof(*pin), GFP_KERNEL_ACCOUNT);
	if (!pin)
		return ERR_PTR(-ENOMEM);

	ret = gdrdrv_pin_set_range(pin, request->addr, request->size);
	if (ret)
		goto free_pin;

	mutex_init(&pin->lock);
	init_waitqueue_head(&pin->wait);
	INIT_LIST_HEAD(&pin->live);
	pin->owner = gfile->owner;
	pin->uid = current_uid();
	pin->zero_after = request->zero_after;
	pin->pages.persistent = request->persistent;
	pin->pages.p2p_flags = request->force_pcie ? GDRDRV_P2P_GET_PAGES_FORCE_BAR1 : 0;

	pin->file = gdrdrv_share_new_file(pin);
	if (IS_ERR(pin->file)) {
		ret = PTR_ERR(pin->file);
		goto free_pin;
	}
	return pin;

free_pin:
	kfree(pin);
	return ERR_PTR(ret);
}

static u32 gdrdrv_pin_default_type(const struct gdrdrv_pin *pin)
{
	if (pin->pages.cacheable)
		return GDRDRV_MAPPING_CACHED;
	return pin->pages.held ? GDRDRV_MAPPING_WC : GDRDRV_MAPPING_DEVICE;
}

/* How many runs the pin's memory has; an error if it was freed. */
static int gdrdrv_pin_count_runs(struct gdrdrv_pin *pin)
{
	int ret = -EINVAL;

	mutex_lock(&pin->lock);
	if (pin->pages.table)
		ret = gdrdrv_pages_count_runs(&pin->pages);
	mutex_unlock(&pin->lock);
	return ret;
}

static int gdrdrv_pin_fill_runs(struct gdrdrv_pin *pin)
{
	int ret = -EINVAL;

	mutex_lock(&pin->lock);
	if (pin->pages.table) {
		gdrdrv_pages_fill_runs(&pin->pages);
		ret = 0;
	}
	mutex_unlock(&pin->lock);
	return ret;
}

/*
 * Records the memory as write-combined if possible, unless it was freed. From here on, a revocation
 * is reported.
 */
static int gdrdrv_pin_settle_type(struct gdrdrv_pin *pin, struct gdrdrv_file *gfile)
{
	bool held = gdrdrv_pages_hold_type(&pin->pages);
	int ret = 0;

	mutex_lock(&pin->lock);
	if (pin->state == GDRDRV_PIN_LIVE) {
		pin->pages.held = held;
		pin->type = gdrdrv_pin_default_type(pin);
		pin->gfile = gfile;
	} else {
		if (held)
			gdrdrv_pages_release_type(&pin->pages);
		ret = -EINVAL;
	}
	mutex_unlock(&pin->lock);
	return ret;
}

/* Counts, allocates, then fills in: nothing is allocated under the lock that keeps the table. */
static int gdrdrv_pin_decode(struct gdrdrv_pin *pin, struct gdrdrv_file *gfile)
{
	int nr_runs, ret;

	nr_runs = gdrdrv_pin_count_runs(pin);
	if (nr_runs < 0)
		return nr_runs;

	pin->pages.runs = kvmalloc_array(nr_runs, sizeof(*pin->pages.runs), GFP_KERNEL_ACCOUNT);
	if (!pin->pages.runs)
		return -ENOMEM;

	ret = gdrdrv_pin_fill_runs(pin);
	return ret ? ret : gdrdrv_pin_settle_type(pin, gfile);
}

/* The pin has a handle, but cannot be found by it. The caller must publish or abandon the pin. */
struct gdrdrv_pin *gdrdrv_pin_create(struct gdrdrv_file *gfile,
				     const struct gdrdrv_pin_request *request)
{
	struct gdrdrv_pin *pin;
	int ret;

	pin = gdrdrv_pin_alloc(gfile, request);
	if (IS_ERR(pin)) {
		gdrdrv_count(GDRDRV_COUNT_PINS_REFUSED);
		return pin;
	}

	pin->user = gdrdrv_quota_charge(pin->pages.length);
	if (IS_ERR(pin->user)) {
		ret = PTR_ERR(pin->user);
		goto put_pin;
	}

	/* Cyclic, so that a stale handle does not name another pin for as long as possible. */
	ret = xa_alloc_cyclic(&gfile->pins, &pin->handle, NULL, xa_limit_32b, &gfile->last_handle,
			      GFP_KERNEL_ACCOUNT);
	if (ret < 0)
		goto uncharge;

	ret = gdrdrv_pin_register(pin);
	if (ret)
		goto release_handle;

	ret = gdrdrv_pin_decode(pin, gfile);
	if (ret) {
		gdrdrv_count(GDRDRV_COUNT_PINS_REFUSED);
		gdrdrv_pin_abandon(gfile, pin);
		return ERR_PTR(ret);
	}
	return pin;

release_handle:
	xa_erase(&gfile->pins, pin->handle);
uncharge:
	gdrdrv_quota_uncharge(pin->user, pin->pages.length);
put_pin:
	gdrdrv_pin_put(pin);
	gdrdrv_count(GDRDRV_COUNT_PINS_REFUSED);
	return ERR_PTR(ret);
}

/* The table then owns the pin: another thread may unpin it at once. */
int gdrdrv_pin_publish(struct gdrdrv_file *gfile, struct gdrdrv_pin *pin)
{
	int ret;

	gdrdrv_stats_add_pin(pin);
	trace_gdrdrv_pin(pin);
	ret = xa_err(xa_store(&gfile->pins, pin->handle, pin, GFP_KERNEL_ACCOUNT));
	if (ret) {
		gdrdrv_stats_remove_pin(pin);
		return ret;
	}
	gdrdrv_count(GDRDRV_COUNT_PINS);
	return 0;
}

void gdrdrv_pin_abandon(struct gdrdrv_file *gfile, struct gdrdrv_pin *pin)
{
	u32 handle = pin->handle;

	gdrdrv_pin_end(pin);
	xa_erase(&gfile->pins, handle);
}

/* The pin of exactly this handle, with a reference, or NULL. */
struct gdrdrv_pin *gdrdrv_pin_get(struct gdrdrv_file *gfile, u64 handle)
{
	struct gdrdrv_pin *pin;

	if (handle > U32_MAX)
		return NULL;

	xa_lock(&gfile->pins);
	pin = xa_load(&gfile->pins, handle);
	if (pin)
		get_file(pin->file);
	xa_unlock(&gfile->pins);
	return pin;
}

int gdrdrv_unpin(struct gdrdrv_file *gfile, u64 handle)
{
	struct gdrdrv_pin *pin;

	if (handle > U32_MAX)
		return -EINVAL;

	/* Loaded first: erasing would also free the handle of a pin that is being made. */
	xa_lock(&gfile->pins);
	pin = xa_load(&gfile->pins, handle);
	if (pin)
		__xa_erase(&gfile->pins, handle);
	xa_unlock(&gfile->pins);
	if (!pin)
		return -EINVAL;

	gdrdrv_stats_remove_pin(pin);
	gdrdrv_count(GDRDRV_COUNT_UNPINS);
	trace_gdrdrv_unpin(pin);
	gdrdrv_pin_end(pin);
	return 0;
}

void gdrdrv_unpin_all(struct gdrdrv_file *gfile)
{
	struct gdrdrv_pin *pin;
	unsigned long handle;

	xa_for_each(&gfile->pins, handle, pin) {
		gdrdrv_unpin(gfile, handle);
		cond_resched();
	}
}

bool gdrdrv_pin_was_revoked(struct gdrdrv_pin *pin)
{
	return gdrdrv_pin_has_ended(pin) && READ_ONCE(pin->state) == GDRDRV_PIN_REVOKED;
}

/* Memory that is also cached elsewhere can only be mapped cached, and other memory cannot. */
static bool gdrdrv_pin_may_be(const struct gdrdrv_pin *pin, u32 type)
{
	if (type == GDRDRV_MAPPING_DEVICE && !pin->pages.cacheable && GDRDRV_HAS_DEVICE_TYPE)
		return true;
	return type == gdrdrv_pin_default_type(pin);
}

int gdrdrv_pin_set_type(struct gdrdrv_pin *pin, u32 type)
{
	int ret = 0;

	if (type > GDRDRV_MAPPING_DEVICE)
		return -EINVAL;

	mutex_lock(&pin->lock);
	/* gdr_map() of a libgdrapi with mapping types requests NONE for the default. */
	if (type == GDRDRV_MAPPING_NONE)
		type = gdrdrv_pin_default_type(pin);
	if (pin->state != GDRDRV_PIN_LIVE)
		ret = -EINVAL;
	else if (!gdrdrv_pin_may_be(pin, type))
		ret = -EOPNOTSUPP;
	else if (pin->mappings && type != pin->type)
		ret = -EBUSY;
	else
		pin->type = type;
	mutex_unlock(&pin->lock);
	return ret;
}
