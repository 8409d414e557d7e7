// SPDX-License-Identifier: GPL-2.0 OR MIT
/* What the page tables say about an address of the caller's. */
#include <linux/bitfield.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/version.h>

#include "standin.h"

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 12, 0)

static int read_entry(struct vm_area_struct *vma, u64 address, pgprot_t *protection,
		      struct gpustandin_pte *query)
{
	struct follow_pfnmap_args args = {.vma = vma, .address = address};

	if (follow_pfnmap_start(&args))
		return -EFAULT;
	*protection = args.pgprot;
	query->physical = PFN_PHYS(args.pfn) + offset_in_page(address);
	query->writable = args.writable;
	follow_pfnmap_end(&args);
	return 0;
}

#else

static int read_entry(struct vm_area_struct *vma, u64 address, pgprot_t *protection,
		      struct gpustandin_pte *query)
{
	spinlock_t *lock; /* the page table's */
	pte_t *entry;

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 10, 0)
	if (follow_pte(vma, address, &entry, &lock))
		return -EFAULT;
#else
	if (follow_pte(vma->vm_mm, address, &entry, &lock))
		return -EFAULT;
#endif
	/* Held now, which sparse does not see. */
	__acquire(lock);
	*protection = pte_pgprot(*entry);
	query->physical = PFN_PHYS(pte_pfn(*entry)) + offset_in_page(address);
	query->writable = !!pte_write(*entry);
	pte_unmap_unlock(entry, lock);
	return 0;
}

#endif

#ifdef CONFIG_ARM64

/* By the table that the processor has of memory attributes. */
static u32 cache_mode(pgprot_t protection)
{
	unsigned int index = FIELD_GET(PTE_ATTRINDX_MASK, pgprot_val(protection));

	switch (read_sysreg(mair_el1) >> (index * 8) & 0xff) {
	case MAIR_ATTR_NORMAL:
		return GPUSTANDIN_WB;
	case MAIR_ATTR_NORMAL_NC:
		return GPUSTANDIN_WC;
	case MAIR_ATTR_DEVICE_nGnRE:
	case MAIR_ATTR_DEVICE_nGnRnE:
		return GPUSTANDIN_UC;
	default:
		return GPUSTANDIN_OTHER;
	}
}

#else

/* By the table that Linux writes into the processor: PAT, PCD and PWT are the index. */
static u32 cache_mode(pgprot_t protection)
{
	static const u8 modes[] = {
		GPUSTANDIN_WB, GPUSTANDIN_WC,	 GPUSTANDIN_UC_MINUS, GPUSTANDIN_UC,
		GPUSTANDIN_WB, GPUSTANDIN_OTHER, GPUSTANDIN_UC_MINUS, GPUSTANDIN_OTHER,
	};
	unsigned long bits = pgprot_val(protection);

	return modes[!!(bits & _PAGE_PWT) + 2 * !!(bits & _PAGE_PCD) + 4 * !!(bits & _PAGE_PAT)];
}

#endif

int pte_query(struct gpustandin_pte *query)
{
	struct mm_struct *mm = current->mm;
	struct vm_area_struct *vma;
	pgprot_t protection;
	int ret = -EFAULT;

	mmap_read_lock(mm);
	vma = find_vma(mm, query->address);
	if (vma && query->address >= vma->vm_start && vma->vm_flags & (VM_PFNMAP | VM_IO))
		ret = read_entry(vma, query->address, &protection, query);
	mmap_read_unlock(mm);
	if (!ret)
		query->mode = cache_mode(protection);
	return ret;
}
