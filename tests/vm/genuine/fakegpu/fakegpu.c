// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * An H100, to judge by its configuration space: a PCI function, alone on a host bridge in a domain
 * of its own, to which NVIDIA's nvidia.ko binds. Its BARs lie in the memory of QEMU's
 * ivshmem-plain. What tells the chip stands in the two registers that nvidia.ko reads when it
 * binds; there is nothing behind the others, so the GPU does not start.
 */
#include <linux/io.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/pci_ids.h>

#define IVSHMEM_DEVICE 0x1110
#define IVSHMEM_BAR 2

#define GPU_DOMAIN 1
#define GPU_DEVICE 0x2330
#define GPU_SUBSYSTEM 0x16c1
#define GPU_REVISION 0xa1
#define MSIX_CAPABILITY 0x40
#define MSIX_VECTORS 6
#define MSIX_TABLE 0xb90000
#define MSIX_PENDING 0xba0000

#define NV_PMC_BOOT_0 0x0
#define NV_PMC_BOOT_0_GH100 0x180000a1
#define NV_PMC_BOOT_42 0xa00
#define NV_PMC_BOOT_42_GH100 0x180a1000

/* The largest first, so that each is aligned. */
#define BAR1_OFFSET 0
#define BAR1_SIZE SZ_128M
#define BAR3_OFFSET (BAR1_OFFSET + BAR1_SIZE)
#define BAR3_SIZE SZ_32M
#define BAR0_OFFSET (BAR3_OFFSET + BAR3_SIZE)
#define BAR0_SIZE SZ_16M

static u8 config[PCI_CFG_SPACE_SIZE];
static u8 writable[PCI_CFG_SPACE_SIZE];

static struct pci_sysdata domain = {.domain = GPU_DOMAIN, .node = NUMA_NO_NODE};

static struct resource window = {
	.name = "fakegpu",
	.flags = IORESOURCE_MEM | IORESOURCE_PREFETCH | IORESOURCE_MEM_64,
};

static struct pci_dev *ivshmem;
static struct pci_bus *bus;

static int gpu_read(struct pci_bus *asked, unsigned int devfn, int where, int size, u32 *value)
{
	int i;

	if (asked->number || devfn) {
		PCI_SET_ERROR_RESPONSE(value);
		return PCIBIOS_DEVICE_NOT_FOUND;
	}
	*value = 0;
	for (i = 0; i < size && where + i < sizeof(config); i++)
		*value |= (u32)config[where + i] << (8 * i);
	return PCIBIOS_SUCCESSFUL;
}

static int gpu_write(struct pci_bus *asked, unsigned int devfn, int where, int size, u32 value)
{
	int i;

	if (asked->number || devfn)
		return PCIBIOS_DEVICE_NOT_FOUND;
	for (i = 0; i < size && where + i < sizeof(config); i++) {
		u8 mask = writable[where + i];

		config[where + i] = (config[where + i] & ~mask) | ((value >> (8 * i)) & mask);
	}
	return PCIBIOS_SUCCESSFUL;
}

static struct pci_ops gpu_ops = {
	.read = gpu_read,
	.write = gpu_write,
};

static void put(u8 *space, int where, int size, u64 value)
{
	for (; size; size--, value >>= 8)
		space[where++] = value;
}

/* All three of a Hopper are 64-bit and prefetchable. Of the address, what the size leaves. */
static void put_bar(int where, u64 offset, u64 size)
{
	u64 flags = PCI_BASE_ADDRESS_MEM_TYPE_64 | PCI_BASE_ADDRESS_MEM_PREFETCH;

	put(config, where, 8, (window.start + offset) | flags);
	put(writable, where, 8, ~(size - 1));
}

static void put_config(void)
{
	put(config, PCI_VENDOR_ID, 2, PCI_VENDOR_ID_NVIDIA);
	put(config, PCI_DEVICE_ID, 2, GPU_DEVICE);
	put(config, PCI_STATUS, 2, PCI_STATUS_CAP_LIST);
	put(config, PCI_CLASS_REVISION, 4, PCI_CLASS_DISPLAY_3D << 16 | GPU_REVISION);
	put(config, PCI_SUBSYSTEM_VENDOR_ID, 2, PCI_VENDOR_ID_NVIDIA);
	put(config, PCI_SUBSYSTEM_ID, 2, GPU_SUBSYSTEM);
	put_bar(PCI_BASE_ADDRESS_0, BAR0_OFFSET, BAR0_SIZE);
	put_bar(PCI_BASE_ADDRESS_2, BAR1_OFFSET, BAR1_SIZE);
	put_bar(PCI_BASE_ADDRESS_4, BAR3_OFFSET, BAR3_SIZE);
	put(writable, PCI_COMMAND, 2,
	    PCI_COMMAND_IO | PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER | PCI_COMMAND_PARITY |
		    PCI_COMMAND_SERR | PCI_COMMAND_INTX_DISABLE);

	/* Without it the driver asks for an interrupt line. */
	put(config, PCI_CAPABILITY_LIST, 1, MSIX_CAPABILITY);
	put(config, MSIX_CAPABILITY, 1, PCI_CAP_ID_MSIX);
	put(config, MSIX_CAPABILITY + PCI_MSIX_FLAGS, 2, MSIX_VECTORS - 1);
	put(config, MSIX_CAPABILITY + PCI_MSIX_TABLE, 4, MSIX_TABLE);
	put(config, MSIX_CAPABILITY + PCI_MSIX_PBA, 4, MSIX_PENDING);
	put(writable, MSIX_CAPABILITY + PCI_MSIX_FLAGS, 2,
	    PCI_MSIX_FLAGS_ENABLE | PCI_MSIX_FLAGS_MASKALL);
}

static int put_registers(void)
{
	u8 __iomem *registers = ioremap(window.start + BAR0_OFFSET, SZ_4K);

	if (!registers)
		return -ENOMEM;
	writel(NV_PMC_BOOT_0_GH100, registers + NV_PMC_BOOT_0);
	writel(NV_PMC_BOOT_42_GH100, registers + NV_PMC_BOOT_42);
	iounmap(registers);
	return 0;
}

static void remove_bus(void)
{
	struct pci_host_bridge *bridge = to_pci_host_bridge(bus->bridge);

	pci_stop_root_bus(bus);
	pci_remove_root_bus(bus);
	/* It came with the bus, and does not go with it. */
	pci_free_host_bridge(bridge);
}

static int add_bus(void)
{
	LIST_HEAD(windows);
	struct pci_dev *gpu;
	int bar, ret = 0;

	pci_add_resource(&windows, &window);
	bus = pci_create_root_bus(NULL, 0, &gpu_ops, &domain, &windows);
	if (!bus) {
		pci_free_resource_list(&windows);
		return -ENOMEM;
	}
	pci_scan_child_bus(bus);
	gpu = pci_get_slot(bus, 0);
	if (!gpu)
		ret = -ENODEV;
	for (bar = 0; !ret && bar <= 4; bar += 2)
		ret = pci_claim_resource(gpu, bar);
	pci_dev_put(gpu);
	if (ret)
		remove_bus();
	else
		pci_bus_add_devices(bus);
	return ret;
}

static int __init fakegpu_init(void)
{
	int ret;

	ivshmem = pci_get_device(PCI_VENDOR_ID_REDHAT_QUMRANET, IVSHMEM_DEVICE, NULL);
	if (!ivshmem)
		return -ENODEV;
	ret = pci_enable_device_mem(ivshmem);
	if (ret)
		goto put_ivshmem;

	window.start = pci_resource_start(ivshmem, IVSHMEM_BAR);
	window.end = window.start + BAR0_OFFSET + BAR0_SIZE - 1;
	ret = request_resource(&ivshmem->resource[IVSHMEM_BAR], &window);
	if (ret)
		goto disable_ivshmem;
	ret = put_registers();
	if (ret)
		goto release_window;
	put_config();

	pci_lock_rescan_remove();
	ret = add_bus();
	pci_unlock_rescan_remove();
	if (ret)
		goto release_window;
	return 0;

release_window:
	release_resource(&window);
disable_ivshmem:
	pci_disable_device(ivshmem);
put_ivshmem:
	pci_dev_put(ivshmem);
	return ret;
}

static void __exit fakegpu_exit(void)
{
	pci_lock_rescan_remove();
	remove_bus();
	pci_unlock_rescan_remove();
	release_resource(&window);
	pci_disable_device(ivshmem);
	pci_dev_put(ivshmem);
}

module_init(fakegpu_init);
module_exit(fakegpu_exit);

MODULE_DESCRIPTION("A GPU for nvidia.ko to bind to");
MODULE_LICENSE("Dual MIT/GPL");
