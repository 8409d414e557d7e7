/* SPDX-License-Identifier: MIT */
#include "fault.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAULTS_MAX 16

struct fault {
	char call[80]; /* or the path, for an open */
	bool is_open;
	unsigned long countdown; /* calls until it strikes; 0 once it has */
	uint32_t value;
};

static const char *const calls[] = {
	"ioctl",
	"mmap",
	"munmap",
	"CARD_INFO",
	"CHECK_VERSION",
	"RM_ALLOC",
	"ROOT_CLIENT",
	"DEVICE",
	"SUBDEVICE",
	"SUBSCRIPTION",
	"CONFIDENTIAL",
	"RM_FREE",
	"RM_CONTROL",
	"GPU_GET_ID_INFO",
	"GET_EXPORT_OBJECT_INFO",
	"IMPORT_OBJECTS_FROM_FD",
	"GET_SURFACE_INFO",
	"GET_CONFIDENTIAL",
	"GET_VIRTUALIZATION",
	"RM_DUP_OBJECT",
	"RM_MAP_MEMORY",
	"RM_UNMAP_MEMORY",
	"RM_ALLOC_MEMORY",
	"RM_MAP_MEMORY_DMA",
	"RM_UNMAP_MEMORY_DMA",
	"REGISTER_FD",
	"OS_EVENT",
	"FREE_OS_EVENT",
	"ADDRESS_SPACE",
	"VIRTUAL",
	"LOCAL_MEMORY",
	"GROUP",
	"CHANNEL",
	"COPY",
	"EVENT",
	"USERMODE",
	"CLASS_LIST",
	"COPY_CAPS",
	"BIND",
	"SCHEDULE",
	"SET_TIMESLICE",
	"GET_TIMESLICE",
	"TOKEN",
	"ENGINE",
	"INTERRUPT",
	"STALL",
	"STALL_UNMAP",
};

static struct fault faults[FAULTS_MAX];
static size_t fault_count;
static bool is_set; /* by the environment or since */

static bool known_call(const char *call)
{
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		if (!strcmp(call, calls[i]))
			return true;
	return false;
}

static bool parse_number(const char *text, unsigned long *number)
{
	char *end;

	*number = strtoul(text, &end, 0);
	return end != text && !*end && *number && *number <= UINT32_MAX;
}

static bool parse_fault(char *text, struct fault *fault)
{
	char *position = NULL;
	const char *call = strtok_r(text, ":", &position);
	const char *middle = strtok_r(NULL, ":", &position);
	const char *last = strtok_r(NULL, ":", &position);
	unsigned long value;

	if (!last || strtok_r(NULL, ":", &position) || !parse_number(last, &value))
		return false;
	fault->value = value;

	fault->is_open = !strcmp(call, "open");
	if (fault->is_open)
		call = middle;
	else if (!known_call(call) || !parse_number(middle, &fault->countdown))
		return false;
	return snprintf(fault->call, sizeof(fault->call), "%s", call) < (int)sizeof(fault->call);
}

int fault_set(const char *specification)
{
	char text[1024], *position = NULL, *one;
	struct fault parsed[FAULTS_MAX] = {0};
	size_t count = 0;

	is_set = true;
	if (!specification)
		specification = "";
	if (snprintf(text, sizeof(text), "%s", specification) >= (int)sizeof(text))
		goto malformed;

	for (one = strtok_r(text, ",", &position); one; one = strtok_r(NULL, ",", &position))
		if (count == FAULTS_MAX || !parse_fault(one, &parsed[count++]))
			goto malformed;

	memcpy(faults, parsed, sizeof(faults));
	fault_count = count;
	return 0;

malformed:
	fprintf(stderr, "fakerm: bad fault '%s'; want CALL:COUNT:VALUE or open:PATH:ERRNO\n",
		specification);
	return -EINVAL;
}

/* When it is first asked for: as this library begins, the environment is not there yet. */
static void read_environment(void)
{
	if (!is_set)
		fault_set(getenv("FAKE_RM_FAULT"));
}

uint32_t fault_take(const char *call)
{
	uint32_t value = 0;

	read_environment();
	for (size_t i = 0; i < fault_count; i++) {
		struct fault *fault = &faults[i];

		if (fault->is_open || strcmp(fault->call, call) || !fault->countdown)
			continue;
		if (--fault->countdown == 0)
			value = fault->value;
	}
	return value;
}

int fault_of_open(const char *path)
{
	int value = 0;

	read_environment();
	for (size_t i = 0; i < fault_count; i++)
		if (faults[i].is_open && !strcmp(faults[i].call, path)) {
			value = faults[i].value;
			if (value == EINTR)
				faults[i].call[0] = '\0';
		}
	return value;
}
