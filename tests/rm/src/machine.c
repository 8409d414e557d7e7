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
		fprintf(stderr, "fakerm: %s is not a number of devices from 1 to %d; taking 1\n",
			text, RM_MAX_DEVICES);
		return 1;
	}
	return devices;
}

/* The newest release that is no newer than the version; the oldest for one that is older. */
static const struct release *release_of(const char *version)
{
	const struct release *found = releases;
	unsigned int numbers[3] = {0};

	sscanf(version, "%u.%u.%u", &numbers[0], &numbers[1], &numbers[2]);
	for (size_t i = 1; i < sizeof(releases) / sizeof(releases[0]); i++) {
		const unsigned int *first = releases[i].first;
		int n = 0;

		while (n < 2 && numbers[n] == first[n])
			n++;
		if (numbers[n] >= first[n])
			found = &releases[i];
	}
	return found;
}

/* What abi.h says and no release contradicts; what changes is asked of fact() where it is used. */
static const struct {
	enum fact fact;
	uint32_t value;
} constants[] = {
	{FACT_NR_USER_MEMORY, RM_NR_USER_MEMORY},
	{FACT_NR_MAP_DMA, RM_NR_MAP_DMA},
	{FACT_NR_UNMAP_DMA, RM_NR_UNMAP_DMA},
	{FACT_NR_REGISTER_FD, RM_NR_REGISTER_FD},
	{FACT_NR_OS_EVENT, RM_NR_OS_EVENT},
	{FACT_NR_FREE_OS_EVENT, RM_NR_FREE_OS_EVENT},
	{FACT_SIZE_REGISTER_FD, sizeof(int32_t)},
	{FACT_SIZE_OS_EVENT, sizeof(struct rm_os_event)},
	{FACT_SIZE_USER_MEMORY, sizeof(struct rm_user_memory)},
	{FACT_SIZE_VIRTUAL_PARAMS, sizeof(struct rm_virtual_params)},
	{FACT_SIZE_COPY_PARAMS, sizeof(struct rm_copy_params)},
	{FACT_SIZE_EVENT_PARAMS, sizeof(struct rm_event_params)},
	{FACT_SIZE_CLASS_LIST, sizeof(struct rm_class_list)},
	{FACT_SIZE_COPY_CAPS, sizeof(struct rm_copy_caps)},
	{FACT_SIZE_NOTIFICATION, sizeof(struct rm_notification)},
	{FACT_SIZE_USERD, RM_USERD_SIZE},
	{FACT_AT_USERD_GET, RM_USERD_GET},
	{FACT_AT_USERD_PUT, RM_USERD_PUT},
	{FACT_CLASS_LOCAL_MEMORY, RM_CLASS_LOCAL_MEMORY},
	{FACT_CLASS_VIRTUAL, RM_CLASS_VIRTUAL},
	{FACT_CLASS_USER_MEMORY, RM_CLASS_USER_MEMORY},
	{FACT_CLASS_EVENT, RM_CLASS_EVENT},
	{FACT_CLASS_ADDRESS_SPACE, RM_CLASS_ADDRESS_SPACE},
	{FACT_CLASS_GROUP, RM_CLASS_GROUP},
	{FACT_CLASS_USERMODE, RM_CLASS_USERMODE},
	{FACT_CLASS_CHANNEL, RM_CLASS_CHANNEL},
	{FACT_CLASS_COPY, RM_CLASS_COPY},
	{FACT_ENGINE_COPY0, RM_ENGINE_COPY0},
	{FACT_NOTIFIER_COPY0, RM_NOTIFIER_COPY0},
	{FACT_NR_ALLOC, RM_NR_ALLOC},
	{FACT_NR_CARD_INFO, RM_NR_CARD_INFO},
	{FACT_NR_CONTROL, RM_NR_CONTROL},
	{FACT_NR_DUP, RM_NR_DUP_OBJECT},
	{FACT_NR_FREE, RM_NR_FREE},
	{FACT_NR_MAP, RM_NR_MAP_MEMORY},
	{FACT_NR_UNMAP, RM_NR_UNMAP_MEMORY},
	{FACT_SIZE_ALLOC, sizeof(struct rm_alloc)},
	{FACT_SIZE_CARD_INFO, sizeof(struct rm_card)},
	{FACT_SIZE_CONTROL, sizeof(struct rm_control)},
	{FACT_SIZE_DEVICE_PARAMS, sizeof(struct rm_device_params)},
	{FACT_SIZE_DUP, sizeof(struct rm_dup_object)},
	{FACT_SIZE_FREE, sizeof(struct rm_free)},
	{FACT_SIZE_INSTANCE_PARAMS, sizeof(struct rm_mig_params)},
	{FACT_SIZE_MAP, sizeof(struct rm_map_memory)},
	{FACT_SIZE_SUBDEVICE_PARAMS, sizeof(uint32_t)},
	{FACT_SIZE_SURFACE_ENTRY, sizeof(struct rm_surface_item)},
	{FACT_SIZE_UNMAP, sizeof(struct rm_unmap_memory)},
	{FACT_AT_CONTROL_STATUS, offsetof(struct rm_control, status)},
	{FACT_AT_EXPORT_INFO_DEVICE_INSTANCE, offsetof(struct rm_export_info, device_instance)},
	{FACT_AT_IMPORT_COUNT, offsetof(struct rm_import_many, count)},
	{FACT_AT_IMPORT_TYPES, offsetof(struct rm_import_many, types)},
	{FACT_AT_MAP_FD, offsetof(struct rm_map_memory, fd)},
	{FACT_AT_MAP_STATUS, offsetof(struct rm_map_memory, status)},
	{FACT_CLASS_CONFIDENTIAL, RM_CLASS_CONFIDENTIAL},
	{FACT_CLASS_DEVICE, RM_CLASS_DEVICE},
	{FACT_CLASS_INSTANCE, RM_CLASS_MIG_INSTANCE},
	{FACT_CLASS_ROOT_CLIENT, RM_CLASS_ROOT_CLIENT},
	{FACT_CLASS_SUBDEVICE, RM_CLASS_SUBDEVICE},
	{FACT_MAX_CARDS, RM_MAX_DEVICES},
	{FACT_MAX_IMPORT, RM_IMPORT_MAX},
	{FACT_OBJECT_VIDEO_MEMORY, RM_IMPORT_VIDEO_MEMORY},
	{FACT_STATUS_INVALID_ARGUMENT, RM_INVALID_ARGUMENT},
	{FACT_STATUS_INVALID_PARAMETER, RM_INVALID_PARAMETER},
	{FACT_STATUS_NOT_SUPPORTED, RM_NOT_SUPPORTED},
	{FACT_STATUS_NO_MEMORY, RM_NO_MEMORY},
	{FACT_STATUS_OBJECT_NOT_FOUND, RM_OBJECT_NOT_FOUND},
	{FACT_SURFACE_SIZE, RM_SURFACE_SIZE_IN_4K},
	{FACT_VIRTUALIZATION_GUEST, RM_VIRTUALIZATION_GUEST},
};

static void check_constants(void)
{
	for (size_t i = 0; i < sizeof(constants) / sizeof(constants[0]); i++) {
		uint32_t theirs = the_machine.release->facts[constants[i].fact];

		if (theirs == constants[i].value)
			continue;
		fprintf(stderr, "fakerm: constant %zu is %#x, and %#x in driver %s\n", i,
			constants[i].value, theirs, the_machine.version);
		abort();
	}
}

static uint32_t read_mig_instance(void)
{
	const char *text = getenv("FAKE_RM_MIG");

	return text ? (uint32_t)strtoul(text, NULL, 10) : NO_MIG_INSTANCE;
}

static void read_environment(void)
{
	const char *version = getenv("FAKE_RM_VERSION");
	const char *no_nodes = getenv("FAKE_RM_NO_NODES");
	const char *confidential = getenv("FAKE_RM_CONFIDENTIAL");

	the_machine.mig_instance = read_mig_instance();
	the_machine.confidential = confidential;
	the_machine.protected_pcie = confidential && !strcmp(confidential, "pcie");
	the_machine.guest = getenv("FAKE_RM_GUEST");
	the_machine.has_driver = !no_nodes || strcmp(no_nodes, "1");
	the_machine.devices = read_devices();
	snprintf(the_machine.version, sizeof(the_machine.version), "%s",
		 version ? version : DEFAULT_VERSION);
	the_machine.release = release_of(the_machine.version);
	check_constants();
}

const struct machine *machine(void)
{
	pthread_once(&once, read_environment);
	return &the_machine;
}

uint32_t fact(enum fact which)
{
	return machine()->release->facts[which];
}

uint32_t get32(const char *structure, enum fact at)
{
	uint32_t value;

	memcpy(&value, structure + fact(at), sizeof(value));
	return value;
}

uint64_t get64(const char *structure, enum fact at)
{
	uint64_t value;

	memcpy(&value, structure + fact(at), sizeof(value));
	return value;
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

uint32_t machine_capability(uint32_t minor)
{
	return 30 + 9 * minor;
}
