// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Pins: made, found, revoked, ended. */
#include <linux/err.h>
#include <linux/overflow.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "gdrdrv.h"
#include "trace.h"

/* Only once the state says that the fault handler must refuse. */
static void gdrdrv_pin_zap(struct gdrdrv_pin *pin)
{
	unmap_mapping_range(pin->file->f_mapping, 0, 0, 1);
	/* Pairs with gdrdrv_pin_has_ended(). */
	smp_store_release(&pin->zapped, true);
	wake_up_interruptible_poll(&pin->wait, EPOLLHUP | EPOLLERR);
}

/*
 * Called by nvidia.ko, with its lock held, before it takes the memory away. The zap is outside our
 * lock, since it calls MMU notifiers, nvidia-uvm's among them; and it is done even if an unpin is
 * under way, which may not have come to its own yet.
 */
static void gdrdrv_pin_memory_freed(void *data)
{
	struct gdrdrv_pin *pin = data;
	bool was_live;

	mutex_lock(&pin->lock);
	was_live = pin->state == GDRDRV_PIN_LIVE;
	if (was_live)
		pin->state = GDRDRV_PIN_REVOKED;
	mutex_unlock(&pin->lock);

	gdrdrv_pin_zap(pin);
	if (!was_live)
		return;

	/* The event comes last: who reads it finds the mappings gone. */
	gdrdrv_count(GDRDRV_COUNT_REVOCATIONS);
	trace_gdrdrv_revoke(pin);
	mutex_lock(&pin->lock);
	if (pin->gfile)
		gdrdrv_event_post(&pin->gfile->events, GDRDRV_EVENT_REVOKED, pin->handle);
	mutex_unlock(&pin->lock);
}

/* Ends a pin that has its pages, and gives up the caller's reference. */
static void gdrdrv_pin_end(struct gdrdrv_pin *pin)
{
	mutex_lock(&pin->lock);
	if (pin->state == GDRDRV_PIN_LIVE)
		pin->state = GDRDRV_PIN_ENDED;
	pin->gfile = NULL;
	mutex_unlock(&pin->lock);

	gdrdrv_pin_zap(pin);
	gdrdrv_pages_put(&pin->pages);
	gdrdrv_pages_release(&pin->pages);
	gdrdrv_quota_uncharge(pin->user, pin->pages.length);
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
	/* What an offset into a file can say. */
	return pin->pages.length > MAX_LFS_FILESIZE ? -EINVAL : 0;
}

static struct gdrdrv_pin *gdrdrv_pin_alloc(struct gdrdrv_file *gfile,
					   const struct gdrdrv_pin_request *request)
{
	struct gdrdrv_pin *pin;
	int ret;

	if (request->persistent && (request->token || request->va_space))
		return ERR_PTR(-EINVAL);
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
	pin->gfile = gfile;
	pin->zero_after = request->zero_after;
	pin->pages.token = request->token;
	pin->pages.va_space = request->va_space;
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
	return pin->pages.cacheable ? GDRDRV_MAPPING_CACHED : GDRDRV_MAPPING_WC;
}

/* The lock keeps a free callback from finishing, and so the table from going away under us. */
static int gdrdrv_pin_decode(struct gdrdrv_pin *pin)
{
	int ret = -EINVAL;

	mutex_lock(&pin->lock);
	if (pin->state == GDRDRV_PIN_LIVE)
		ret = gdrdrv_pages_decode(&pin->pages);
	mutex_unlock(&pin->lock);
	return ret;
}

/* The pin has its handle, but nobody finds it until it is published; else it is to be abandoned. */
struct gdrdrv_pin *gdrdrv_pin_create(struct gdrdrv_file *gfile,
				     const struct gdrdrv_pin_request *request)
{
	struct gdrdrv_pin *pin;
	u64 start;
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

	/* Cyclic: a handle kept too long means no other pin for as long as can be. */
	ret = xa_alloc_cyclic(&gfile->pins, &pin->handle, NULL, xa_limit_32b, &gfile->last_handle,
			      GFP_KERNEL_ACCOUNT);
	if (ret < 0)
		goto uncharge;

	start = gdrdrv_cycles();
	ret = gdrdrv_pages_get(&pin->pages, gdrdrv_pin_memory_freed, pin);
	if (ret)
		goto release_handle;
	pin->cycles = gdrdrv_cycles() - start;

	ret = gdrdrv_pin_decode(pin);
	if (ret) {
		gdrdrv_count(GDRDRV_COUNT_PINS_REFUSED);
		gdrdrv_pin_abandon(gfile, pin);
		return ERR_PTR(ret);
	}

	pin->type = gdrdrv_pin_default_type(pin);
	if (!pin->pages.cacheable)
		gdrdrv_pages_hold_type(&pin->pages);
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

/* Afterwards the pin is the table's: another thread may unpin it at once. */
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

void gdrdrv_pin_put(struct gdrdrv_pin *pin)
{
	fput(pin->file);
}

int gdrdrv_unpin(struct gdrdrv_file *gfile, u64 handle)
{
	struct gdrdrv_pin *pin;

	if (handle > U32_MAX)
		return -EINVAL;

	/* Loaded first: erasing would also take the place of a pin that is being made. */
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

/* Told only once no mapping shows the memory: who hears of the end stores into it no more. */
bool gdrdrv_pin_has_ended(struct gdrdrv_pin *pin)
{
	/* Pairs with gdrdrv_pin_zap(). */
	return smp_load_acquire(&pin->zapped);
}

bool gdrdrv_pin_was_revoked(struct gdrdrv_pin *pin)
{
	return gdrdrv_pin_has_ended(pin) && READ_ONCE(pin->state) == GDRDRV_PIN_REVOKED;
}

/* Memory that is cached elsewhere too is mapped cached or not at all, and the other way round. */
static bool gdrdrv_pin_may_be(const struct gdrdrv_pin *pin, u32 type)
{
	if (pin->pages.cacheable)
		return type == GDRDRV_MAPPING_CACHED;
	return type == GDRDRV_MAPPING_WC ||
	       (type == GDRDRV_MAPPING_DEVICE && GDRDRV_HAS_DEVICE_TYPE);
}

int gdrdrv_pin_set_type(struct gdrdrv_pin *pin, u32 type)
{
	int ret = 0;

	if (type > GDRDRV_MAPPING_DEVICE)
		return -EINVAL;
	/* So gdr_map() of a libgdrapi that knows types asks for none in particular. */
	if (type == GDRDRV_MAPPING_NONE)
		type = gdrdrv_pin_default_type(pin);

	mutex_lock(&pin->lock);
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
