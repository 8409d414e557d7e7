/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Debian's later 6.1 and 6.12 took over from newer kernels that pci_resize_resource() has a fourth
 * argument, which the open flavour of 535 and 550 does not know.
 */
#ifndef __ASSEMBLY__
#include <linux/pci.h>

#define pci_resize_resource(dev, bar, size) (pci_resize_resource(dev, bar, size, 0))
#endif
