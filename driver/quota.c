// SPDX-License-Identifier: GPL-2.0 OR MIT
/* How many bytes each user has pinned, and may pin. */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/err.h>
#include <linux/moduleparam.h>
#include <linux/slab.h>

#include "gdrdrv.h"

static unsigned long max_pinned_mib;
module_param(max_pinned_mib, ulong, 0644);
MODULE_PARM_DESC(max_pinned_mib, "MiB that a user may have pinned (default 0: no limit)");

struct gdrdrv_user {
	struct list_head node;
	kuid_t uid;
	u64 bytes;
	unsigned int pins;
};

static LIST_HEAD(gdrdrv_users);
static DEFINE_MUTEX(gdrdrv_users_lock);

static struct gdrdrv_user *gdrdrv_user_find(kuid_t uid)
{
	struct gdrdrv_user *user;

	list_for_each_entry(user, &gdrdrv_users, node) {
		if (uid_eq(user->uid, uid))
			return user;
	}

	user = kzalloc(sizeof(*user), GFP_KERNEL_ACCOUNT);
	if (!user)
		return NULL;
	user->uid = uid;
	list_add_tail(&user->node, &gdrdrv_users);
	return user;
}

static void gdrdrv_user_drop_unused(struct gdrdrv_user *user)
{
	if (user->pins)
		return;
	list_del(&user->node);
	kfree(user);
}

static bool gdrdrv_user_may_pin(const struct gdrdrv_user *user, u64 bytes)
{
	u64 limit = (u64)READ_ONCE(max_pinned_mib) << 20;

	if (!limit || (bytes <= limit && user->bytes <= limit - bytes))
		return true;
	return capable(CAP_SYS_RESOURCE);
}

/* Charges the calling user; the same bytes pinned twice count twice. */
struct gdrdrv_user *gdrdrv_quota_charge(u64 bytes)
{
	struct gdrdrv_user *user;

	mutex_lock(&gdrdrv_users_lock);
	user = gdrdrv_user_find(current_uid());
	if (!user) {
		user = ERR_PTR(-ENOMEM);
	} else if (!gdrdrv_user_may_pin(user, bytes)) {
		gdrdrv_user_drop_unused(user);
		user = ERR_PTR(-EDQUOT);
	} else {
		user->bytes += bytes;
		user->pins++;
	}
	mutex_unlock(&gdrdrv_users_lock);
	return user;
}

void gdrdrv_quota_uncharge(struct gdrdrv_user *user, u64 bytes)
{
	mutex_lock(&gdrdrv_users_lock);
	user->bytes -= bytes;
	user->pins--;
	gdrdrv_user_drop_unused(user);
	mutex_unlock(&gdrdrv_users_lock);
}

kuid_t gdrdrv_quota_uid(const struct gdrdrv_user *user)
{
	return user->uid;
}

void gdrdrv_quota_show(struct seq_file *seq)
{
	struct gdrdrv_user *user;

	mutex_lock(&gdrdrv_users_lock);
	list_for_each_entry(user, &gdrdrv_users, node)
		seq_printf(seq, "user %u: %u pins, %llu bytes\n", __kuid_val(user->uid), user->pins,
			   user->bytes);
	mutex_unlock(&gdrdrv_users_lock);
}
