// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Files bound to one pin. Each pin has a separate inode, on an invisible file system, so that its
 * mappings have a separate address space. The kernel's anonymous inode is unsuitable: it is shared
 * by all its files, and its functions are GPL-only.
 */
#include <linux/err.h>
#include <linux/module.h>
#include <linux/mount.h>
#include <linux/pseudo_fs.h>
#include <linux/slab.h>

#include "gdrdrv.h"

static int gdrdrv_fs_init_context(struct fs_context *context)
{
	return init_pseudo(context, GDRDRV_SHARE_MAGIC) ? 0 : -ENOMEM;
}

static struct file_system_type gdrdrv_fs = {
	.owner = THIS_MODULE,
	.name = "gdrdrv",
	.init_fs_context = gdrdrv_fs_init_context,
	.kill_sb = kill_anon_super,
};

static struct vfsmount *gdrdrv_mount;
static int gdrdrv_mount_users;

/* Mounted only while the node is open, because a mount holds the module. */
int gdrdrv_share_fs_get(void)
{
	return simple_pin_fs(&gdrdrv_fs, &gdrdrv_mount, &gdrdrv_mount_users);
}

void gdrdrv_share_fs_put(void)
{
	simple_release_fs(&gdrdrv_mount, &gdrdrv_mount_users);
}

static int gdrdrv_share_mmap(struct file *filp, struct vm_area_struct *vma)
{
	return gdrdrv_map_pin(filp->private_data, vma);
}

static __poll_t gdrdrv_share_poll(struct file *filp, poll_table *wait)
{
	struct gdrdrv_pin *pin = filp->private_data;

	poll_wait(filp, &pin->wait, wait);
	return gdrdrv_pin_has_ended(pin) ? EPOLLHUP | EPOLLERR : 0;
}

/* The last reference is gone: tables, nvidia.ko, share fds and mappings have none left. */
static int gdrdrv_pin_release(struct inode *inode, struct file *filp)
{
	struct gdrdrv_pin *pin = filp->private_data;

	kvfree(pin->pages.runs);
	kfree(pin);
	return 0;
}

static int gdrdrv_share_release(struct inode *inode, struct file *filp)
{
	gdrdrv_pin_put(filp->private_data);
	return 0;
}

static const struct file_operations gdrdrv_pin_fops = {
	.owner = THIS_MODULE,
	.release = gdrdrv_pin_release,
	.mmap = gdrdrv_share_mmap,
	.poll = gdrdrv_share_poll,
};

static const struct file_operations gdrdrv_read_only_fops = {
	.owner = THIS_MODULE,
	.release = gdrdrv_share_release,
	.mmap = gdrdrv_share_mmap,
	.poll = gdrdrv_share_poll,
};

/* Consumes the reference to the inode, even on failure. */
static struct file *gdrdrv_share_file(struct inode *inode, int flags,
				      const struct file_operations *fops, struct gdrdrv_pin *pin)
{
	struct file *file;

	/* The file drops it when it is released. */
	__module_get(THIS_MODULE);
	file = alloc_file_pseudo(inode, gdrdrv_mount, "gdrdrv", flags, fops);
	if (IS_ERR(file)) {
		module_put(THIS_MODULE);
		iput(inode);
		return file;
	}
	file->private_data = pin;
	return file;
}

struct file *gdrdrv_share_new_file(struct gdrdrv_pin *pin)
{
	struct inode *inode;

	inode = alloc_anon_inode(gdrdrv_mount->mnt_sb);
	if (IS_ERR(inode))
		return ERR_CAST(inode);
	i_size_write(inode, pin->pages.length);
	return gdrdrv_share_file(inode, O_RDWR, &gdrdrv_pin_fops, pin);
}

/*
 * The read-write share is the pin's file. A read-only share is another file on the same inode that
 * is not open for writing, so the kernel lets none of its mappings become writable.
 */
int gdrdrv_share_open(struct file *filp, struct gdrdrv_pin *pin, bool read_only,
		      struct file **share)
{
	struct file *file;

	if (!read_only) {
		if (!(filp->f_mode & FMODE_WRITE))
			return -EACCES;
		*share = get_file(pin->file);
		return 0;
	}

	ihold(file_inode(pin->file));
	file = gdrdrv_share_file(file_inode(pin->file), O_RDONLY, &gdrdrv_read_only_fops, pin);
	if (IS_ERR(file))
		return PTR_ERR(file);
	get_file(pin->file);
	*share = file;
	return 0;
}
