// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Lets a test call the stand-in's peer-to-peer interface as a driver does. An open file holds at
 * most one pin, which it puts when it is closed.
 */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "nv_p2p.h"
#include "p2pprobe.h"

struct probe {
	struct mutex lock; /* of a get or put: one at a time */
	u64 address;
	struct nvidia_p2p_page_table *table; /* as got; a callback leaves it dangling */
	bool persistent;
	bool put_in_callback;
	atomic_t callbacks;
};

static void called_back(void *data)
{
	struct probe *probe = data;

	if (probe->put_in_callback)
		nvidia_p2p_put_pages(0, 0, probe->address, probe->table);
	atomic_inc(&probe->callbacks);
}

static long get(struct probe *probe, struct p2pprobe_get *args)
{
	struct nvidia_p2p_page_table *table;
	int ret;

	if (probe->table)
		return -EBUSY;
	probe->put_in_callback = args->flags & P2PPROBE_PUT_IN_CALLBACK;
	if (args->flags & P2PPROBE_PERSISTENT)
		ret = nvidia_p2p_get_pages_persistent(args->address, args->size, &table,
						      args->driver_flags);
	else
		ret = nvidia_p2p_get_pages(0, 0, args->address, args->size, &table, called_back,
					   probe);
	if (ret)
		return ret;
	probe->table = table;
	probe->address = args->address;
	probe->persistent = args->flags & P2PPROBE_PERSISTENT;
	args->version = probe->table->version;
	args->page_size = probe->table->page_size;
	args->entries = probe->table->entries;
	args->table_flags = probe->table->version >= 0x00020000 ? probe->table->flags : 0;
	args->first = probe->table->pages[0]->physical_address;
	args->last = probe->table->pages[args->entries - 1]->physical_address;
	return 0;
}

static long put(struct probe *probe)
{
	long ret;

	if (!probe->table)
		return -EINVAL;
	if (probe->persistent)
		ret = nvidia_p2p_put_pages_persistent(probe->address, probe->table, 0);
	else
		ret = nvidia_p2p_put_pages(0, 0, probe->address, probe->table);
	if (!ret)
		probe->table = NULL;
	return ret;
}

static long probe_ioctl(struct file *file, unsigned int command, unsigned long user)
{
	struct probe *probe = file->private_data;
	void __user *argument = (void __user *)user;
	struct p2pprobe_get args;
	long ret;

	switch (command) {
	case P2PPROBE_GET:
		if (copy_from_user(&args, argument, sizeof(args)))
			return -EFAULT;
		mutex_lock(&probe->lock);
		ret = get(probe, &args);
		mutex_unlock(&probe->lock);
		if (!ret && copy_to_user(argument, &args, sizeof(args)))
			return -EFAULT;
		return ret;
	case P2PPROBE_PUT:
		mutex_lock(&probe->lock);
		ret = put(probe);
		mutex_unlock(&probe->lock);
		return ret;
	case P2PPROBE_FORGET:
		mutex_lock(&probe->lock);
		probe->table = NULL;
		mutex_unlock(&probe->lock);
		return 0;
	case P2PPROBE_CALLBACKS:
		return atomic_read(&probe->callbacks);
	default:
		return -ENOTTY;
	}
}

static int probe_open(struct inode *inode, struct file *file)
{
	struct probe *probe = kzalloc(sizeof(*probe), GFP_KERNEL);

	if (!probe)
		return -ENOMEM;
	mutex_init(&probe->lock);
	file->private_data = probe;
	return 0;
}

static int probe_release(struct inode *inode, struct file *file)
{
	struct probe *probe = file->private_data;

	put(probe);
	kfree(probe);
	return 0;
}

static const struct file_operations probe_fops = {
	.owner = THIS_MODULE,
	.open = probe_open,
	.release = probe_release,
	.unlocked_ioctl = probe_ioctl,
};

static struct miscdevice probe_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "p2pprobe",
	.mode = 0666,
	.fops = &probe_fops,
};
module_misc_device(probe_device);

MODULE_DESCRIPTION("Test access to the peer-to-peer interface of GPU memory");
MODULE_LICENSE("Dual MIT/GPL");
