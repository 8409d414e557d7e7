/* SPDX-License-Identifier: MIT */
#include "backends/backends.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/forks.h"
#include "rm/abi.h"

const struct core_backend *const core_backends[] = {&core_backend_gdrdrv, &core_backend_dmabuf,
						    &core_backend_nvrm, &core_backend_sim, NULL};

static const struct core_backend *const on_real[] = {&core_backend_gdrdrv, &core_backend_dmabuf,
						     &core_backend_nvrm, NULL};
static const struct core_backend *const on_simulated[] = {&core_backend_gdrdrv, &core_backend_sim,
							  NULL};

const struct core_backend *const *core_candidates(const struct core_cuda *cuda)
{
	return cuda && core_cuda_simulated(cuda) ? on_simulated : on_real;
}

const struct core_backend *core_backend_named(const char *name)
{
	const struct core_backend *const *one = core_backends;

	while (*one && strcmp((*one)->name, name))
		one++;
	return *one;
}

void core_status_say(struct core_status *status, const char *reason, const char *remedy)
{
	snprintf(status->reason, sizeof(status->reason), "%s", reason);
	snprintf(status->remedy, sizeof(status->remedy), "%s", remedy);
}

static struct core_memory *take_by(const struct core_cuda *cuda, const struct core_backend *backend,
				   const struct core_request *request,
				   const struct core_found *found, struct core_error *error)
{
	struct core_status status;

	backend->status(cuda, found->pointer.device, request->node, &status);
	if (!status.usable)
		core_fail(error, CORE_FAILED_UNAVAILABLE, ENODEV, "%s (%s)", status.reason,
			  status.remedy);
	else if (request->revocable && !backend->revocable_pins)
		core_fail(error, CORE_FAILED_UNAVAILABLE, EOPNOTSUPP, "its pins cannot be revoked");
	else
		return backend->take(cuda, request, found, error);
	return NULL;
}

/* The caller of an allocation with a descriptor already knows what CUDA would report. */
static int find(const struct core_cuda *cuda, const struct core_request *request,
		struct core_found *found, struct core_error *error)
{
	if (request->fd < 0)
		return core_pointer_range(cuda, request->ptr, request->nbytes,
					  request->gpu_pages ? GDRDRV_GPU_PAGE_SIZE : 1,
					  &found->pointer, &found->range, error);
	found->pointer = (struct core_pointer){
		.ptr = request->ptr,
		.base = request->ptr,
		.nbytes = request->nbytes,
		.map_base = request->ptr,
		.map_nbytes = request->nbytes,
		.device = request->device,
	};
	found->range = (struct core_range){request->ptr, request->ptr + request->nbytes};
	return 0;
}

/* Whether another backend may succeed. */
static bool passes_on(const struct core_error *error)
{
	return error->failure == CORE_FAILED_UNAVAILABLE || error->failure == CORE_FAILED_HANDLE;
}

struct core_memory *core_take(const struct core_cuda *cuda, const struct core_backend *forced,
			      const struct core_request *request, struct core_error *error)
{
	const struct core_backend *const only[] = {forced, NULL};
	const struct core_backend *const *one = forced ? only : core_candidates(cuda);
	char told[sizeof(error->message)] = "";
	struct core_error refused = {.failure = CORE_FAILED_UNAVAILABLE, .number = ENODEV};
	struct core_found found;
	bool readonly;
	size_t used = 0;

	if (find(cuda, request, &found, error))
		return NULL;
	readonly = request->fd < 0 && core_pointer_readonly(cuda, &found.pointer);
	for (; *one; one++) {
		struct core_memory *memory = take_by(cuda, *one, request, &found, error);

		if (memory)
			memory->readonly = readonly;
		if (memory || !passes_on(error))
			return memory;
		/* A problem with the memory says more than a missing backend. */
		if (error->failure == CORE_FAILED_HANDLE)
			refused = *error;
		if (used < sizeof(told))
			used += (size_t)snprintf(told + used, sizeof(told) - used, "%s%s: %s",
						 used ? "; " : "", (*one)->name, error->message);
	}
	core_fail(error, refused.failure, refused.number, "%s%s",
		  refused.failure == CORE_FAILED_HANDLE ? "" : "no backend can map this memory: ",
		  told);
	error->status = refused.status;
	error->result = refused.result;
	return NULL;
}

#define VERSION_FILE "/proc/driver/nvidia/version"

/* Parse a version such as 580.159.04. If it has only two numbers, the third is 0. */
static bool parse_version(const char *word, unsigned int numbers[3])
{
	int most = -1, least = -1;

	memset(numbers, 0, 3 * sizeof(numbers[0]));
	sscanf(word, "%u.%u%n.%u%n", &numbers[0], &numbers[1], &least, &numbers[2], &most);
	return numbers[0] >= 100 && least > 0 && word[most > 0 ? most : least] == '\0';
}

void core_driver_version(char version[32])
{
	int fd = core_private_open(VERSION_FILE, O_RDONLY);
	unsigned int numbers[3];
	char text[1024], *rest;
	ssize_t got = fd >= 0 ? read(fd, text, sizeof(text) - 1) : 0;

	if (fd >= 0)
		core_private_close(fd);
	text[got > 0 ? got : 0] = '\0';
	version[0] = '\0';
	for (char *word = strtok_r(text, " \t\n", &rest); word && !version[0];
	     word = strtok_r(NULL, " \t\n", &rest))
		if (strlen(word) < 32 && parse_version(word, numbers))
			strcpy(version, word);
}

static int compare(const char *version, const char *other)
{
	unsigned int one[3], two[3];

	parse_version(version, one);
	parse_version(other, two);
	for (int i = 0; i < 3; i++)
		if (one[i] != two[i])
			return one[i] < two[i] ? -1 : 1;
	return 0;
}

bool core_driver_tested(const char *version)
{
	return compare(version, CORE_RM_TESTED_MIN) >= 0 &&
	       compare(version, CORE_RM_TESTED_MAX) <= 0;
}
