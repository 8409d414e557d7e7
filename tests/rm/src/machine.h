/* SPDX-License-Identifier: MIT */
/*
 * The simulated machine: how many GPUs, which driver, and what each GPU is called where.
 *
 *   FAKE_RM_DEVICES       GPUs, 1 to 32; else GDRPY_SIM_DEVICES; else 1
 *   FAKE_RM_VERSION       the driver's version: its answers are those of this release
 *   FAKE_RM_NO_NODES      1: a machine without the driver
 *   FAKE_RM_MIG           every GPU is split, and all memory is in this MIG instance (0 to 14)
 *   FAKE_RM_CONFIDENTIAL  1: confidential computing is on; pcie: as the protected PCIe mode
 *   FAKE_RM_GUEST         1: every GPU is a virtual one
 *
 * A GPU has a device instance, a minor number and a GPU id, and no two of them are equal by
 * accident when there is more than one GPU: the instances count up, the minors count down.
 */
#ifndef FAKERM_MACHINE_H
#define FAKERM_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "releases.h" /* made of releases.tsv by build.py */

#define NO_MIG_INSTANCE 0xFFFFFFFFu

struct machine {
	bool has_driver;
	uint32_t devices;
	char version[64];
	const struct release *release;
	uint32_t mig_instance; /* or NO_MIG_INSTANCE */
	bool confidential, protected_pcie;
	bool guest;
};

/* Read from the environment once, when first asked for. */
const struct machine *machine(void);

/* Returns the RM status of a step that fails. */
#define TRY(step)                                                                                  \
	do {                                                                                       \
		uint32_t tried = (step);                                                           \
                                                                                                   \
		if (tried)                                                                         \
			return tried;                                                              \
	} while (0)

/* What NVIDIA's sources of the driver's release say; FACT_ABSENT for what it lacks. */
uint32_t fact(enum fact which);

/* The word of a structure at the offset that the release has for it. */
uint32_t get32(const char *structure, enum fact at);
uint64_t get64(const char *structure, enum fact at);

/* The instance of a minor, or the minor of an instance: one is the other's mirror image. */
uint32_t machine_mirror(uint32_t instance_or_minor);

uint32_t machine_pci_bus(uint32_t instance);
uint32_t machine_gpu_id(uint32_t instance);

/* The minor of the node in /dev/nvidia-caps that gives the right to a GPU's MIG instance. */
uint32_t machine_capability(uint32_t minor);

#endif
