// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The node. The process that opens it owns the pins made through it. */
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/slab.h>

#include "gdrdrv.h"

static ushort mode = 0666;
module_param(mode, ushort, 0444);
MODULE_PARM_DESC(mode, "Permissions of /dev/gdrdrv (default 0666)");

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

/* Called by the process that closes the file last, which may not be the owner. */
static int gdrdrv_release(struct inode *inode, struct file *filp)
{
	struct gdrdrv_file *gfile = filp->private_data;

	gdrdrv_unpin_all(gfile);
	xa_destroy(&gfile->pins);
	gdrdrv_share_fs_put();
	kfree(gfile);
	return 0;
}

/* The offset, in pages, is the handle. */
static int gdrdrv_mmap(struct file *filp, struct vm_area_struct *vma)
{
	struct gdrdrv_file *gfile = filp->private_data;
	struct gdrdrv_pin *pin;
	int ret;

	if (!gdrdrv_is_current(&gfile->owner))
		return -EACCES;

	pin = gdrdrv_pin_get(gfile, vma->vm_pgoff);
	if (!pin)
		return -EINVAL;
	ret = gdrdrv_map_by_handle(pin, vma, filp);
	gdrdrv_pin_put(pin);
	return ret;
}

static const struct file_operations gdrdrv_fops = {
	.owner = THIS_MODULE,
	.open = gdrdrv_open,
	.release = gdrdrv_release,
	.unlocked_ioctl = gdrdrv_ioctl,
	.mmap = gdrdrv_mmap,
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
	ret = gdrdrv_stats_init(&gdrdrv_use_persistent_mapping);
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
/* insmod.sh rebuilds the module for another driver. */
MODULE_INFO(nvidia, GDRDRV_NVIDIA_DRIVER);
#endif
