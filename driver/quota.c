// SPDX-License-Identifier: GPL-2.0 OR MIT
/* How many bytes each user has pinned, and may pin. */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/err.h>
#include <linux/mm.h>
#include <linux/moduleparam.h>
#include <linux/sizes.h>
#include <linux/slab.h>

#include "gdrdrv.h"

/* System memory that nvidia.ko and this module use for a pinned page of 64 KiB. */
#define BYTES_FOR_A_PAGE 128
/* The minimum charge for a pin, which uses as much system memory as the pages of this size. */
#define LEAST_CHARGE SZ_1M
/* At the default limit, a user's pages use 1/32 of the system memory. */
#define SHARE_OF_MEMORY 32
#define DEFAULT_LIMIT ULONG_MAX

static unsigned long max_pinned_mib = DEFAULT_LIMIT;
module_param(max_pinned_mib, ulong, 0644);
MODULE_PARM_DESC(max_pinned_mib,
		 "MiB that a user may pin (default 16 times the memory; 0: no limit)");

struct gdrdrv_user {
	struct list_head node;
	kuid_t uid;
	u64 bytes;
	unsigned int pins;
};

static LIST_HEAD(gdrdrv_users);
/* The free callback takes it, like a pin's lock: nothing is allocated under it. */
static DEFINE_MUTEX(gdrdrv_users_lock);

void gdrdrv_quota_init(void)
{
	u64 mib = (u64)totalram_pages() >> (20 - PAGE_SHIFT);

	if (max_pinned_mib == DEFAULT_LIMIT)
		max_pinned_mib = mib * (GDRDRV_GPU_PAGE_SIZE / BYTES_FOR_A_PAGE) / SHARE_OF_MEMORY;
}

/* Finds the user with the new one's uid on the list, or else adds the new one. */
static struct gdrdrv_user *gdrdrv_user_find_or_add(struct gdrdrv_user *new)
{
	struct gdrdrv_user *user;

	list_for_each_entry(user, &gdrdrv_users, node) {
		if (uid_eq(user->uid, new->uid)) {
			kfree(new);
			return user;
		}
	}
	list_add_tail(&new->node, &gdrdrv_users);
	return new;
}

static void gdrdrv_user_drop_unused(struct gdrdrv_user *user)
{
	if (user->pins)
		return;
	list_del(&user->node);
	kfree(user);
}

static bool gdrdrv_user_has_room(const struct gdrdrv_user *user, u64 bytes)
{
	u64 limit = min_t(u64, READ_ONCE(max_pinned_mib), U64_MAX >> 20) << 20;

	return !limit || (bytes <= limit && user->bytes <= limit - bytes);
}

static struct gdrdrv_user *gdrdrv_quota_try(u64 bytes, bool is_limited)
{
	struct gdrdrv_user *user;

	user = kzalloc(sizeof(*user), GFP_KERNEL_ACCOUNT);
	if (!user)
		return ERR_PTR(-ENOMEM);
	user->uid = current_uid();

	mutex_lock(&gdrdrv_users_lock);
	user = gdrdrv_user_find_or_add(user);
	if (is_limited && !gdrdrv_user_has_room(user, bytes)) {
		gdrdrv_user_drop_unused(user);
		user = ERR_PTR(-EDQUOT);
	} else {
		user->bytes += bytes;
		user->pins++;
	}
	mutex_unlock(&gdrdrv_users_lock);
	return user;
}

/* Charges the calling user; the same bytes pinned twice count twice. */
struct gdrdrv_user *gdrdrv_quota_charge(u64 length)
{
	u64 bytes = max_t(u64, length, LEAST_CHARGE);
	struct gdrdrv_user *user = gdrdrv_quota_try(bytes, true);

	/* Checked outside the lock: a security module may allocate to log a refusal. */
	if (user == ERR_PTR(-EDQUOT) && capable(CAP_SYS_RESOURCE))
		user = gdrdrv_quota_try(bytes, false);
	return user;
}

void gdrdrv_quota_uncharge(struct gdrdrv_user *user, u64 length)
{
	mutex_lock(&gdrdrv_users_lock);
	user->bytes -= max_t(u64, length, LEAST_CHARGE);
	user->pins--;
	gdrdrv_user_drop_unused(user);
	mutex_unlock(&gdrdrv_users_lock);
}

/* Shows all users, or one. */
void gdrdrv_quota_show(struct seq_file *seq, const kuid_t *only)
{
	struct gdrdrv_user *user;

	mutex_lock(&gdrdrv_users_lock);
	list_for_each_entry(user, &gdrdrv_users, node) {
		if (!only || uid_eq(*only, user->uid))
			seq_printf(seq, "user %u: %u pins, %llu bytes\n", __kuid_val(user->uid),
				   user->pins, user->bytes);
	}
	mutex_unlock(&gdrdrv_users_lock);
}

u64 gdrdrv_quota_pins(void)
{
	struct gdrdrv_user *user;
	u64 pins = 0;

	mutex_lock(&gdrdrv_users_lock);
	list_for_each_entry(user, &gdrdrv_users, node)
		pins += user->pins;
	mutex_unlock(&gdrdrv_users_lock);
	return pins;
}
