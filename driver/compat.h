/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Differences between kernels 5.10 to 7.x and between architectures, and replacements for calls
 * that need GPL-only symbols, which the module must not use beside the proprietary nvidia.ko.
 */
#ifndef GDRDRV_COMPAT_H
#define GDRDRV_COMPAT_H

#include <linux/fs.h>
#include <linux/io.h>
#include <linux/mm.h>
#include <linux/pci.h>
#include <linux/timex.h>
#include <linux/version.h>

#include <asm/pgalloc.h>
#ifdef CONFIG_X86
#include <asm/tsc.h>
#endif

#define GDRDRV_KERNEL_BEFORE(major, minor) (LINUX_VERSION_CODE < KERNEL_VERSION(major, minor, 0))

/*
 * Only for a VMA passed to ->mmap: it is not visible elsewhere yet, so its flags may change without
 * the lock that vm_flags_set() takes through a GPL-only symbol.
 */
static inline void gdrdrv_vma_change_flags(struct vm_area_struct *vma, unsigned long clear,
					   unsigned long set)
{
	unsigned long flags = (vma->vm_flags & ~clear) | set;

#ifdef GDRDRV_HAS_VM_FLAGS_INIT
	vm_flags_init(vma, flags);
#else
	vma->vm_flags = flags;
#endif
}

/* On kernels before 5.11 ->mmap must not fail afterwards. */
static inline void gdrdrv_vma_set_file(struct vm_area_struct *vma, struct file *file)
{
#if GDRDRV_KERNEL_BEFORE(5, 11)
	get_file(file);
	swap(vma->vm_file, file);
	fput(file);
#else
	vma_set_file(vma, file);
#endif
}

#if GDRDRV_KERNEL_BEFORE(5, 11)
#define gdrdrv_may_split split
#else
#define gdrdrv_may_split may_split
#endif

/* Where VM_BUG_ON() is compiled in, arm64's pmd_populate() needs a symbol that is not exported. */
static inline void gdrdrv_pmd_populate(struct mm_struct *mm, pmd_t *pmd, pgtable_t table)
{
#if defined(CONFIG_ARM64) && defined(CONFIG_DEBUG_VM)
#ifndef PMD_TABLE_AF
#define PMD_TABLE_AF 0
#endif
	__pmd_populate(pmd, page_to_phys(table), PMD_TYPE_TABLE | PMD_TABLE_AF | PMD_TABLE_PXN);
#else
	pmd_populate(mm, pmd, table);
#endif
}

/* Time stamp counts for the ABI: 0 if there are none, or only through GPL-only symbols. */
static inline u64 gdrdrv_cycles(void)
{
#ifdef CONFIG_X86
	return get_cycles();
#else
	return 0;
#endif
}

static inline u32 gdrdrv_cycles_khz(void)
{
#ifdef CONFIG_X86
	return tsc_khz;
#else
	return 0;
#endif
}

#ifdef CONFIG_X86

/* pgprot_writecombine() is GPL-only on x86. */
static inline pgprot_t gdrdrv_pgprot_wc(pgprot_t prot)
{
	return __pgprot((pgprot_val(prot) & ~_PAGE_CACHE_MASK) |
			cachemode2protval(_PAGE_CACHE_MODE_WC));
}

/*
 * Whether the kernel maps a page write-combined, read from the entry of a test mapping. If another
 * driver has recorded the range as uncached, a request for write-combined silently gets uncached.
 */
static inline bool gdrdrv_is_wc(phys_addr_t phys)
{
	void __iomem *probe = ioremap_wc(phys, PAGE_SIZE);
	unsigned long addr = (unsigned long __force)probe;
	pmd_t *pmd;
	pte_t pte;

	if (!probe)
		return false;
	/* Every process's tables contain the kernel's part; init_mm is not exported. */
	pmd = pmd_offset(pud_offset(p4d_offset(pgd_offset(current->mm, addr), addr), addr), addr);
	pte = *pte_offset_kernel(pmd, addr);
	iounmap(probe);
	return (pte_flags(pte) & _PAGE_CACHE_MASK) == cachemode2protval(_PAGE_CACHE_MODE_WC);
}

#else

static inline bool gdrdrv_is_wc(phys_addr_t phys)
{
	return true;
}

static inline pgprot_t gdrdrv_pgprot_wc(pgprot_t prot)
{
	return pgprot_writecombine(prot);
}

#endif

/* A BAR is outside the memory that AMD processors encrypt. */
static inline pgprot_t gdrdrv_pgprot_io(pgprot_t prot)
{
#if defined(CONFIG_X86) && defined(CONFIG_AMD_MEM_ENCRYPT)
	return __pgprot(__sme_clr(pgprot_val(prot)));
#else
	return prot;
#endif
}

#ifdef CONFIG_ARM64

#define GDRDRV_HAS_DEVICE_TYPE true

static inline pgprot_t gdrdrv_pgprot_device(pgprot_t prot)
{
	return pgprot_device(prot);
}

/*
 * Whether the kernel has a cached mapping of the page; page_is_ram() is GPL-only. From 5.14 on,
 * pfn_valid() is true for whole sections, which may contain a BAR.
 */
static inline bool gdrdrv_is_ram(unsigned long pfn)
{
#if GDRDRV_KERNEL_BEFORE(5, 14)
	return pfn_valid(pfn);
#else
	return pfn_is_map_memory(pfn);
#endif
}

/* Write-combined mappings of a GPU do not work on a host with BlueField-3's root complex. */
static inline bool gdrdrv_must_use_device_type(void)
{
	static const u16 root_complexes[] = {0xa2da, 0xa2db};
	struct pci_dev *device = NULL;
	unsigned int i;

	for (i = 0; !device && i < ARRAY_SIZE(root_complexes); i++)
		device = pci_get_device(PCI_VENDOR_ID_MELLANOX, root_complexes[i], NULL);
	pci_dev_put(device);
	return device;
}

#else

#define GDRDRV_HAS_DEVICE_TYPE false

static inline pgprot_t gdrdrv_pgprot_device(pgprot_t prot)
{
	return pgprot_noncached(prot);
}

static inline bool gdrdrv_is_ram(unsigned long pfn)
{
	return false;
}

static inline bool gdrdrv_must_use_device_type(void)
{
	return false;
}

#endif

#endif
