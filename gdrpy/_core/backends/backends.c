/* SPDX-License-Identifier: MIT */
#include "backends/backends.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/forks.h"
#include "cuda/pointer.h"
#include "rm/abi.h"

const struct gdr_backend *const gdr_backends[] = {&gdr_backend_gdrdrv, &gdr_backend_dmabuf,
						  &gdr_backend_nvrm, &gdr_backend_sim, NULL};

static const struct gdr_backend *const on_real[] = {&gdr_backend_gdrdrv, &gdr_backend_dmabuf,
						    &gdr_backend_nvrm, NULL};
static const struct gdr_backend *const on_simulated[] = {&gdr_backend_gdrdrv, &gdr_backend_sim,
							 NULL};

const struct gdr_backend *const *gdr_candidates(const struct gdr_cuda *cuda)
{
	return cuda && gdr_cuda_simulated(cuda) ? on_simulated : on_real;
}

const struct gdr_backend *gdr_backend_named(const char *name)
{
	const struct gdr_backend *const *one = gdr_backends;

	while (*one && strcmp((*one)->name, name))
		one++;
	return *one;
}

void gdr_status_say(struct gdr_status *status, const char *reason, const char *remedy)
{
	snprintf(status->reason, sizeof(status->reason), "%s", reason);
	snprintf(status->remedy, sizeof(status->remedy), "%s", remedy);
}

static struct gdr_memory *take_by(const struct gdr_cuda *cuda, const struct gdr_backend *backend,
				  const struct gdr_request *request, struct gdr_error *error)
{
	struct gdr_status status;

	backend->status(cuda, request->device, request->node, &status);
	if (!status.usable)
		gdr_fail(error, GDR_FAILED_UNAVAILABLE, ENODEV, "%s (%s)", status.reason,
			 status.remedy);
	else if (request->revocable && !backend->revocable_pins)
		gdr_fail(error, GDR_FAILED_UNAVAILABLE, EOPNOTSUPP,
			 "its pins keep the memory that their owner frees");
	else
		return backend->take(cuda, request, error);
	return NULL;
}

static int find_device(const struct gdr_cuda *cuda, const struct gdr_request *request, int *device,
		       struct gdr_error *error)
{
	uint64_t page = request->gpu_pages ? GDRDRV_GPU_PAGE_SIZE : 1;
	struct gdr_pointer pointer;
	struct gdr_range range;

	if (gdr_pointer_range(cuda, request->ptr, request->nbytes, page, &pointer, &range, error))
		return -1;
	*device = pointer.device;
	return 0;
}

/* Whether another backend may do better. */
static bool passes_on(const struct gdr_error *error)
{
	return error->failure == GDR_FAILED_UNAVAILABLE || error->failure == GDR_FAILED_HANDLE;
}

struct gdr_memory *gdr_take(const struct gdr_cuda *cuda, const struct gdr_backend *forced,
			    const struct gdr_request *request, struct gdr_error *error)
{
	const struct gdr_backend *const only[] = {forced, NULL};
	const struct gdr_backend *const *one = forced ? only : gdr_candidates(cuda);
	char told[sizeof(error->message)] = "";
	struct gdr_error refused = {.failure = GDR_FAILED_UNAVAILABLE, .number = ENODEV};
	struct gdr_request known = *request;
	size_t used = 0;

	if (request->device < 0 && find_device(cuda, request, &known.device, error))
		return NULL;
	for (; *one; one++) {
		struct gdr_memory *memory = take_by(cuda, *one, &known, error);

		if (memory || !passes_on(error))
			return memory;
		/* What is wrong with the memory itself tells more than that a backend is not here.
		 */
		if (error->failure == GDR_FAILED_HANDLE)
			refused = *error;
		if (used < sizeof(told))
			used += (size_t)snprintf(told + used, sizeof(told) - used, "%s%s: %s",
						 used ? "; " : "", (*one)->name, error->message);
	}
	gdr_fail(error, refused.failure, refused.number, "%s%s",
		 refused.failure == GDR_FAILED_HANDLE ? "" : "no backend can map this memory: ",
		 told);
	error->status = refused.status;
	error->result = refused.result;
	return NULL;
}

#define VERSION_FILE "/proc/driver/nvidia/version"

/* Whether a word is like 580.159.04: its numbers, the last 0 if there are but two. */
static bool parse_version(const char *word, unsigned int numbers[3])
{
	int most = -1, least = -1;

	memset(numbers, 0, 3 * sizeof(numbers[0]));
	sscanf(word, "%u.%u%n.%u%n", &numbers[0], &numbers[1], &least, &numbers[2], &most);
	return numbers[0] >= 100 && least > 0 && word[most > 0 ? most : least] == '\0';
}

void gdr_driver_version(char version[32])
{
	int fd = gdr_private_open(VERSION_FILE, O_RDONLY);
	unsigned int numbers[3];
	char text[1024], *rest;
	ssize_t got = fd >= 0 ? read(fd, text, sizeof(text) - 1) : 0;

	if (fd >= 0)
		gdr_private_close(fd);
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

bool gdr_driver_tested(const char *version)
{
	return compare(version, GDR_NVRM_TESTED_MIN) >= 0 &&
	       compare(version, GDR_NVRM_TESTED_MAX) <= 0;
}
