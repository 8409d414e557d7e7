// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Stands in for nvidia.ko: a PCI device with memory, and the node by which processes have it. */
#include <linux/err.h>
#include <linux/file.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/pid.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/version.h>

#include "standin.h"

#define BAR 2

struct gpustandin_stats stats;

/* The driver's lock is a semaphore, which lockdep cannot see; so these stand for it. */
static DECLARE_RWSEM(api_lock);
static DEFINE_MUTEX(gpu_lock);
static struct task_struct *lock_owner;
static atomic_t waiting;
static LIST_HEAD(registrations);

/* An open file. */
struct view {
	struct block *block;
	struct list_head registrations;
};

bool standin_lock(void)
{
	if (WARN(READ_ONCE(lock_owner) == current, "called from a free callback"))
		return false;
	atomic_inc(&waiting);
	down_write(&api_lock);
	mutex_lock(&gpu_lock);
	atomic_dec(&waiting);
	WRITE_ONCE(lock_owner, current);
	return true;
}

void standin_unlock(void)
{
	WRITE_ONCE(lock_owner, NULL);
	mutex_unlock(&gpu_lock);
	up_write(&api_lock);
}

struct registration *registration_find(u64 token, u64 address, u64 length)
{
	struct registration *found;

	list_for_each_entry(found, &registrations, all) {
		u64 size = (u64)found->block->count * GPUSTANDIN_PAGE;
		u64 offset = address - found->address;

		if ((token ? found->block->id == token : found->process == task_tgid(current)) &&
		    address >= found->address && offset < size && length <= size - offset)
			return found;
	}
	return NULL;
}

struct registration *registration_of_token(u64 token)
{
	struct registration *found;

	list_for_each_entry(found, &registrations, all) {
		if (found->block->id == token)
			return found;
	}
	return NULL;
}

static void registration_end(struct registration *registration)
{
	rm_revoke(registration);
	list_del(&registration->all);
	list_del(&registration->view);
	stats.registrations--;
	put_pid(registration->process);
	kfree(registration);
}

static int view_register(struct view *view, u64 address)
{
	struct registration *registration;

	if (!view->block || address % GPUSTANDIN_PAGE)
		return -EINVAL;
	registration = kzalloc(sizeof(*registration), GFP_KERNEL);
	if (!registration)
		return -ENOMEM;
	registration->process = get_pid(task_tgid(current));
	registration->address = address;
	registration->block = view->block;
	list_add(&registration->all, &registrations);
	list_add(&registration->view, &view->registrations);
	stats.registrations++;
	return 0;
}

static struct registration *view_find(const struct view *view, u64 address)
{
	struct registration *registration;

	list_for_each_entry(registration, &view->registrations, view) {
		if (registration->address == address)
			return registration;
	}
	return NULL;
}

static int view_unregister(struct view *view, u64 address)
{
	struct registration *registration = view_find(view, address);

	if (!registration)
		return -EINVAL;
	registration_end(registration);
	return 0;
}

static int view_forget(struct view *view, u64 address)
{
	struct registration *registration = view_find(view, address);

	if (!registration)
		return -EINVAL;
	put_pid(registration->process);
	registration->process = NULL;
	return 0;
}

static int view_create(struct view *view, struct gpustandin_block *wanted)
{
	struct block *block;

	if (view->block || !wanted->size || wanted->size % GPUSTANDIN_PAGE ||
	    wanted->flags & ~(u32)GPUSTANDIN_SCATTERED)
		return -EINVAL;
	block = block_create(wanted);
	if (IS_ERR(block))
		return PTR_ERR(block);
	view->block = block;
	wanted->id = block->id;
	return 0;
}

static const struct file_operations standin_fops;

static int view_attach(struct view *view, int fd)
{
	struct file *file;
	struct view *other;
	int ret = -EINVAL;

	if (view->block)
		return ret;
	file = fget(fd);
	if (!file)
		return -EBADF;
	if (file->f_op != &standin_fops)
		goto put_file;
	other = file->private_data;
	if (!other->block)
		goto put_file;
	other->block->references++;
	view->block = other->block;
	ret = 0;
put_file:
	fput(file);
	return ret;
}

static int view_info(const struct view *view, struct gpustandin_block *info)
{
	if (!view->block)
		return -EINVAL;
	*info = (struct gpustandin_block){
		.size = (u64)view->block->count * GPUSTANDIN_PAGE,
		.id = view->block->id,
		.ordinal = view->block->ordinal,
	};
	return 0;
}

union argument {
	struct gpustandin_block block;
	u64 address;
	s32 number;
	u32 hold;
	u32 when;
	u32 fault;
	struct gpustandin_pte pte;
	struct gpustandin_stats stats;
};

static long view_ioctl_locked(struct view *view, unsigned int command, union argument *argument)
{
	switch (command) {
	case GPUSTANDIN_CREATE:
		return view_create(view, &argument->block);
	case GPUSTANDIN_ATTACH:
		return view_attach(view, argument->number);
	case GPUSTANDIN_INFO:
		return view_info(view, &argument->block);
	case GPUSTANDIN_REGISTER:
		return view_register(view, argument->address);
	case GPUSTANDIN_UNREGISTER:
		return view_unregister(view, argument->address);
	case GPUSTANDIN_FORGET:
		return view_forget(view, argument->address);
	case GPUSTANDIN_FAIL_GET:
		return rm_fail_next_get(argument->number);
	case GPUSTANDIN_FREE_IN_GET:
		return rm_free_in_next_get(argument->when);
	default:
		return -ENOTTY;
	}
}

/* What must work while a callback is held, which has the lock, does without it. */
static long view_ioctl(struct view *view, unsigned int command, union argument *argument)
{
	long ret;

	switch (command) {
	case GPUSTANDIN_HOLD_CALLBACKS:
		return rm_hold_callbacks(argument->hold);
	case GPUSTANDIN_PTE:
		return pte_query(&argument->pte);
	case GPUSTANDIN_STATS:
		argument->stats = stats;
		argument->stats.waiting_calls = atomic_read(&waiting);
		return 0;
	case GPUSTANDIN_FAULT:
		return fault_make(argument->fault);
	}
	if (!standin_lock())
		return -EDEADLK;
	ret = view_ioctl_locked(view, command, argument);
	standin_unlock();
	return ret;
}

static long standin_ioctl(struct file *file, unsigned int command, unsigned long user)
{
	union argument argument = {};
	unsigned int size = _IOC_SIZE(command);
	long ret;

	if (_IOC_TYPE(command) != 'G' || size > sizeof(argument))
		return -ENOTTY;
	if (_IOC_DIR(command) & _IOC_WRITE && copy_from_user(&argument, (void __user *)user, size))
		return -EFAULT;
	ret = view_ioctl(file->private_data, command, &argument);
	if (!ret && _IOC_DIR(command) & _IOC_READ &&
	    copy_to_user((void __user *)user, &argument, size))
		return -EFAULT;
	return ret;
}

/* Entries of one GPU page at a time. What memory type they have is what the kernel has on record.
 */
static vm_fault_t standin_fault(struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	struct view *view = vma->vm_file->private_data;
	unsigned long per_page = GPUSTANDIN_PAGE / PAGE_SIZE;
	unsigned long first = round_down(vmf->pgoff, per_page);
	unsigned long pfn = PHYS_PFN(block_physical(view->block, first / per_page));
	unsigned long i;

	for (i = 0; i < per_page; i++) {
		long pages = (long)(first + i) - (long)vma->vm_pgoff;
		unsigned long address = vma->vm_start + (pages << PAGE_SHIFT);
		vm_fault_t ret;

		if (pages < 0 || address >= vma->vm_end)
			continue;
		ret = vmf_insert_pfn(vma, address, pfn + i);
		if (ret != VM_FAULT_NOPAGE)
			return ret;
	}
	return VM_FAULT_NOPAGE;
}

static const struct vm_operations_struct standin_vm_ops = {
	.fault = standin_fault,
};

static int standin_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct view *view = file->private_data;
	unsigned long flags = VM_PFNMAP | VM_IO | VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY;
	unsigned long pages;

	if (!view->block || !(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	pages = (unsigned long)view->block->count * (GPUSTANDIN_PAGE / PAGE_SIZE);
	if (vma->vm_pgoff > pages || vma_pages(vma) > pages - vma->vm_pgoff)
		return -EINVAL;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_set(vma, flags);
#else
	vma->vm_flags |= flags;
#endif
	vma->vm_ops = &standin_vm_ops;
	return 0;
}

static int standin_open(struct inode *inode, struct file *file)
{
	struct view *view = kzalloc(sizeof(*view), GFP_KERNEL);

	if (!view)
		return -ENOMEM;
	INIT_LIST_HEAD(&view->registrations);
	file->private_data = view;
	return 0;
}

static void view_end(struct view *view)
{
	struct registration *registration, *next;

	list_for_each_entry_safe(registration, next, &view->registrations, view)
		registration_end(registration);
	block_put(view->block);
}

/* A file that is nothing can be closed while a callback is held. */
static int standin_release(struct inode *inode, struct file *file)
{
	struct view *view = file->private_data;

	if (view->block && standin_lock()) {
		view_end(view);
		standin_unlock();
	}
	kfree(view);
	return 0;
}

static const struct file_operations standin_fops = {
	.owner = THIS_MODULE,
	.open = standin_open,
	.release = standin_release,
	.unlocked_ioctl = standin_ioctl,
	.mmap = standin_mmap,
	.llseek = noop_llseek,
};

static struct miscdevice standin_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "gpustandin",
	.mode = 0666,
	.fops = &standin_fops,
};

static int standin_probe(struct pci_dev *pci, const struct pci_device_id *id)
{
	int ret = pci_enable_device(pci);

	if (ret)
		return ret;
	/* The region is not claimed: tests look at it through sysfs too. */
	ret = block_init(pci_resource_start(pci, BAR), pci_resource_len(pci, BAR));
	if (ret)
		goto disable_device;
	ret = p2p_init();
	if (ret)
		goto exit_blocks;
	ret = misc_register(&standin_device);
	if (ret)
		goto exit_p2p;
	return 0;

exit_p2p:
	p2p_exit();
exit_blocks:
	block_exit();
disable_device:
	pci_disable_device(pci);
	return ret;
}

static void standin_remove(struct pci_dev *pci)
{
	misc_deregister(&standin_device);
	WARN(stats.pins || stats.persistent_pins, "pins leaked");
	rm_exit();
	table_memory_exit();
	p2p_exit();
	block_exit();
	pci_disable_device(pci);
}

/* QEMU's ivshmem-plain. */
static const struct pci_device_id standin_ids[] = {{PCI_DEVICE(0x1af4, 0x1110)}, {}};
MODULE_DEVICE_TABLE(pci, standin_ids);

static struct pci_driver standin_driver = {
	.name = "gpustandin",
	.id_table = standin_ids,
	.probe = standin_probe,
	.remove = standin_remove,
};
module_pci_driver(standin_driver);

MODULE_DESCRIPTION("Stand-in for nvidia.ko in tests: GPU memory on a PCI bar, and its pins");
MODULE_LICENSE("Dual MIT/GPL");
