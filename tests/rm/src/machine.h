/* SPDX-License-Identifier: MIT */
/*
 * The simulated machine: how many GPUs, which driver, and what each GPU is called where.
 *
 *   FAKE_RM_DEVICES   GPUs, 1 to 32; else GDRPY_SIM_DEVICES; else 1
 *   FAKE_RM_VERSION   the driver's version
 *   FAKE_RM_NO_NODES  1: a machine without the driver
 *
 * A GPU has a device instance, a minor number and a GPU id, and no two of them are equal by
 * accident when there is more than one GPU: the instances count up, the minors count down.
 */
#ifndef FAKERM_MACHINE_H
#define FAKERM_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

struct machine {
	bool has_driver;
	uint32_t devices;
	char version[64];
};

/* Read from the environment once, when first asked for. */
const struct machine *machine(void);

/* The instance of a minor, or the minor of an instance: one is the other's mirror image. */
uint32_t machine_mirror(uint32_t instance_or_minor);

uint32_t machine_pci_bus(uint32_t instance);
uint32_t machine_gpu_id(uint32_t instance);

#endif
