// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Mappings. Only faults insert pages, and they check the pin's state under its lock first. So
 * marking a pin as ended and then zapping its address space leaves no page behind, whatever races
 * with mmap, mremap or faults.
 */
#include <linux/refcount.h>
#include <linux/sizes.h>
#include <linux/slab.h>

#include "gdrdrv.h"
#include "trace.h"

/* The size that one fault fills in. */
#define GDRDRV_FAULT_BLOCK SZ_2M

/* One mmap() and the copies that mremap makes of it. */
struct gdrdrv_view {
	refcount_t areas;
	struct gdrdrv_pin *pin;
	struct file *opener; /* the node, when mapped by handle: its close ends the pin */
	struct page *zero;   /* shown after the pin has ended, if zero_after */
};

static void gdrdrv_vma_open(struct vm_area_struct *vma)
{
	struct gdrdrv_view *view = vma->vm_private_data;

	refcount_inc(&view->areas);
}

static void gdrdrv_vma_close(struct vm_area_struct *vma)
{
	struct gdrdrv_view *view = vma->vm_private_data;
	struct gdrdrv_pin *pin = view->pin;

	if (!refcount_dec_and_test(&view->areas))
		return;

	mutex_lock(&pin->lock);
	pin->mappings--;
	if (view->opener)
		pin->mapped_by_handle = false;
	mutex_unlock(&pin->lock);

	if (view->zero)
		__free_page(view->zero);
	if (view->opener)
		fput(view->opener);
	kfree(view);
}

/* Unmapping or protecting a part would leave a mapping that cannot be described by its handle. */
static int gdrdrv_vma_may_split(struct vm_area_struct *vma, unsigned long addr)
{
	return -EINVAL;
}

/* Ordinary memory must not have the area's caching, which was chosen for GPU memory. */
static vm_fault_t gdrdrv_fault_after_end(struct vm_fault *vmf, const struct gdrdrv_view *view)
{
	struct vm_area_struct *vma = vmf->vma;

	if (!view->pin->zero_after)
		return VM_FAULT_SIGBUS;
	return vmf_insert_pfn_prot(vma, vmf->address, page_to_pfn(view->zero),
				   vm_get_page_prot(vma->vm_flags));
}

static vm_fault_t gdrdrv_insert(struct vm_area_struct *vma, const struct gdrdrv_pin *pin,
				unsigned long addr)
{
	u64 offset = ((u64)vma->vm_pgoff << PAGE_SHIFT) + (addr - vma->vm_start);

	return vmf_insert_pfn_prot(vma, addr, gdrdrv_pages_pfn(&pin->pages, offset),
				   vma->vm_page_prot);
}

/* Inserts the faulting page, and others around it if possible. */
static vm_fault_t gdrdrv_fault_live(struct vm_fault *vmf, const struct gdrdrv_pin *pin)
{
	struct vm_area_struct *vma = vmf->vma;
	unsigned long block = ALIGN_DOWN(vmf->address, GDRDRV_FAULT_BLOCK);
	unsigned long addr = max(vma->vm_start, block);
	unsigned long end = min(vma->vm_end - 1, block + (GDRDRV_FAULT_BLOCK - 1));
	vm_fault_t ret;

	ret = gdrdrv_insert(vma, pin, vmf->address & PAGE_MASK);
	if (ret != VM_FAULT_NOPAGE)
		return ret;

	for (; addr < end; addr += PAGE_SIZE) {
		if (gdrdrv_insert(vma, pin, addr) != VM_FAULT_NOPAGE)
			break;
	}
	return ret;
}

/*
 * Installs the page table that the kernel has allocated for this fault: otherwise
 * vmf_insert_pfn_prot() would allocate another one under the pin's lock.
 */
static void gdrdrv_fault_use_page_table(struct vm_fault *vmf)
{
	struct mm_struct *mm = vmf->vma->vm_mm;
	spinlock_t *lock; /* the page tables' */

	if (!vmf->prealloc_pte)
		return;
	lock = pmd_lock(mm, vmf->pmd);
	if (pmd_none(*vmf->pmd)) {
		mm_inc_nr_ptes(mm);
		/* A processor that sees the table must see it empty. */
		smp_wmb();
		gdrdrv_pmd_populate(mm, vmf->pmd, vmf->prealloc_pte);
		vmf->prealloc_pte = NULL;
	}
	spin_unlock(lock);
}

static vm_fault_t gdrdrv_vma_fault(struct vm_fault *vmf)
{
	struct gdrdrv_view *view = vmf->vma->vm_private_data;
	struct gdrdrv_pin *pin = view->pin;
	vm_fault_t ret;

	gdrdrv_count(GDRDRV_COUNT_FAULTS);
	gdrdrv_fault_use_page_table(vmf);
	mutex_lock(&pin->lock);
	if (pin->state == GDRDRV_PIN_LIVE)
		ret = gdrdrv_fault_live(vmf, pin);
	else
		ret = gdrdrv_fault_after_end(vmf, view);
	mutex_unlock(&pin->lock);
	return ret;
}

static const struct vm_operations_struct gdrdrv_vm_ops = {
	.open = gdrdrv_vma_open,
	.close = gdrdrv_vma_close,
	.gdrdrv_may_split = gdrdrv_vma_may_split,
	.fault = gdrdrv_vma_fault,
};

static pgprot_t gdrdrv_protection(pgprot_t prot, u32 type)
{
	switch (type) {
	case GDRDRV_MAPPING_CACHED:
		return prot;
	case GDRDRV_MAPPING_DEVICE:
		return gdrdrv_pgprot_device(gdrdrv_pgprot_io(prot));
	default:
		return gdrdrv_pgprot_wc(gdrdrv_pgprot_io(prot));
	}
}

static bool gdrdrv_range_fits(const struct gdrdrv_pin *pin, struct vm_area_struct *vma,
			      unsigned long first)
{
	u64 pages = pin->pages.length >> PAGE_SHIFT;

	return first < pages && vma_pages(vma) <= pages - first;
}

/* Counts a mapping of a live pin, whose caching cannot change after this. */
static int gdrdrv_pin_enter_mapping(struct gdrdrv_pin *pin, bool by_handle, u32 *type)
{
	int ret = 0;

	mutex_lock(&pin->lock);
	if (pin->state != GDRDRV_PIN_LIVE || (by_handle && pin->mapped_by_handle)) {
		ret = -EINVAL;
	} else if (pin->mappings >= GDRDRV_MAX_MAPPINGS) {
		ret = -ENOSPC;
	} else {
		pin->mappings++;
		if (by_handle)
			pin->mapped_by_handle = true;
		*type = pin->type;
	}
	mutex_unlock(&pin->lock);
	return ret;
}

static int gdrdrv_map(struct gdrdrv_pin *pin, struct vm_area_struct *vma, unsigned long first,
		      struct file *opener)
{
	struct gdrdrv_view *view;
	u32 type;
	int ret;

	if (!(vma->vm_flags & VM_MAYSHARE) || !gdrdrv_range_fits(pin, vma, first))
		return -EINVAL;
	if (vma->vm_flags & VM_EXEC)
		return -EACCES;

	view = kzalloc(sizeof(*view), GFP_KERNEL_ACCOUNT);
	if (!view)
		return -ENOMEM;

	ret = -ENOMEM;
	if (pin->zero_after) {
		view->zero = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
		if (!view->zero)
			goto free_view;
	}

	ret = gdrdrv_pin_enter_mapping(pin, opener, &type);
	if (ret)
		goto free_zero;

	refcount_set(&view->areas, 1);
	view->pin = pin;
	if (opener)
		view->opener = get_file(opener);

	vma->vm_private_data = view;
	vma->vm_ops = &gdrdrv_vm_ops;
	vma->vm_pgoff = first;
	vma->vm_page_prot = gdrdrv_protection(vma->vm_page_prot, type);
	gdrdrv_vma_change_flags(vma, VM_MAYEXEC,
				VM_IO | VM_PFNMAP | VM_DONTEXPAND | VM_DONTCOPY | VM_DONTDUMP);
	gdrdrv_count(GDRDRV_COUNT_MAPPINGS);
	trace_gdrdrv_map(pin, vma, type);
	return 0;

free_zero:
	if (view->zero)
		__free_page(view->zero);
free_view:
	kfree(view);
	return ret;
}

/*
 * The library's way: maps the whole pin or its beginning, one mapping at a time. The area moves
 * from the node to the pin's file, and thus into the pin's address space.
 */
int gdrdrv_map_by_handle(struct gdrdrv_pin *pin, struct vm_area_struct *vma, struct file *node)
{
	int ret;

	if (pin->offset)
		return -EINVAL;

	ret = gdrdrv_map(pin, vma, 0, node);
	if (!ret)
		gdrdrv_vma_set_file(vma, pin->file);
	return ret;
}

int gdrdrv_map_pin(struct gdrdrv_pin *pin, struct vm_area_struct *vma)
{
	return gdrdrv_map(pin, vma, vma->vm_pgoff, NULL);
}
