/* SPDX-License-Identifier: MIT */
#include "machine.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"

#define DEFAULT_VERSION "580.159.04"

static struct machine the_machine;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint32_t read_devices(void)
{
	const char *text = getenv("FAKE_RM_DEVICES");
	unsigned long devices;
	char *end;

	if (!text)
		text = getenv("GDRPY_SIM_DEVICES");
	if (!text)
		return 1;

	devices = strtoul(text, &end, 10);
	if (*end || devices < 1 || devices > RM_MAX_DEVICES) {
		fprintf(stderr, "fakerm: %s is no number of devices from 1 to %d; taking 1\n", text,
			RM_MAX_DEVICES);
		return 1;
	}
	return devices;
}

static void read_environment(void)
{
	const char *version = getenv("FAKE_RM_VERSION");
	const char *no_nodes = getenv("FAKE_RM_NO_NODES");

	the_machine.has_driver = !no_nodes || strcmp(no_nodes, "1");
	the_machine.devices = read_devices();
	snprintf(the_machine.version, sizeof(the_machine.version), "%s",
		 version ? version : DEFAULT_VERSION);
}

const struct machine *machine(void)
{
	pthread_once(&once, read_environment);
	return &the_machine;
}

uint32_t machine_mirror(uint32_t instance_or_minor)
{
	return machine()->devices - 1 - instance_or_minor;
}

uint32_t machine_pci_bus(uint32_t instance)
{
	return instance + 1;
}

uint32_t machine_gpu_id(uint32_t instance)
{
	return machine_pci_bus(instance) << 8;
}
