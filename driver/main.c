// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The node: who opens it owns what is pinned through it. */
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "gdrdrv.h"

static ushort mode = 0666;
module_param(mode, ushort, 0444);
MODULE_PARM_DESC(mode, "Permissions of /dev/gdrdrv (default 0666)");

static struct gdrdrv_process gdrdrv_current_process(void)
{
	return (struct gdrdrv_process){
		.tgid = task_tgid_nr(current),
		.start = current->group_leader->start_boottime,
	};
}

bool gdrdrv_is_current(const struct gdrdrv_process *process)
{
	struct gdrdrv_process now = gdrdrv_current_process();

	return now.tgid == process->tgid && now.start == process->start;
}

static int gdrdrv_open(struct inode *inode, struct file *filp)
{
	struct gdrdrv_file *gfile;
	int ret;

	gfile = kzalloc(sizeof(*gfile), GFP_KERNEL_ACCOUNT);
	if (!gfile)
		return -ENOMEM;

	ret = gdrdrv_share_fs_get();
	if (ret)
		goto free_file;

	gfile->owner = gdrdrv_current_process();
	xa_init_flags(&gfile->pins, XA_FLAGS_ALLOC1);
	gdrdrv_events_init(&gfile->events);
	filp->private_data = gfile;
	return stream_open(inode, filp);

free_file:
	kfree(gfile);
	return ret;
}

/* By whichever process closes it last, not only the owner. */
static int gdrdrv_release(struct inode *inode, struct file *filp)
{
	struct gdrdrv_file *gfile = filp->private_data;

	gdrdrv_unpin_all(gfile);
	xa_destroy(&gfile->pins);
	gdrdrv_share_fs_put();
	kfree(gfile);
	return 0;
}

static const struct file_operations gdrdrv_fops = {
	.owner = THIS_MODULE,
	.open = gdrdrv_open,
	.release = gdrdrv_release,
	.unlocked_ioctl = gdrdrv_ioctl,
	.mmap = gdrdrv_map_by_handle,
	.read = gdrdrv_events_read,
	.poll = gdrdrv_events_poll,
};

static struct miscdevice gdrdrv_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "gdrdrv",
	.fops = &gdrdrv_fops,
};

static int __init gdrdrv_init(void)
{
	int ret;

	if (mode & ~0777)
		return -EINVAL;

	gdrdrv_quota_init();
	ret = gdrdrv_stats_init();
	if (ret)
		return ret;

	gdrdrv_device.mode = mode;
	ret = misc_register(&gdrdrv_device);
	if (ret)
		goto exit_stats;

	return 0;

exit_stats:
	gdrdrv_stats_exit();
	return ret;
}

static void __exit gdrdrv_exit(void)
{
	misc_deregister(&gdrdrv_device);
	gdrdrv_stats_exit();
}

module_init(gdrdrv_init);
module_exit(gdrdrv_exit);

MODULE_DESCRIPTION("CPU mappings of GPU memory");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION("2.6");
#ifdef GDRDRV_NVIDIA_DRIVER
/* Whoever loads it builds it anew for another one. */
MODULE_INFO(nvidia, GDRDRV_NVIDIA_DRIVER);
#endif
