/* SPDX-License-Identifier: MIT */
/* Backend gdrdrv: any device pointer, through the kernel module that serves /dev/gdrdrv. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "backends/backends.h"
#include "backends/memory_pin.h"
#include "backends/memory_share.h"
#include "cuda/pointer.h"

#define LOAD "load the kernel module gdrdrv"

void gdr_node_explain(int error, struct gdr_status *status)
{
	switch (error) {
	case ENOENT:
	case ENXIO:
	case ENODEV:
		gdr_status_say(status, "no kernel module serves " GDRDRV_NODE, LOAD);
		break;
	case EACCES:
	case EPERM:
		gdr_status_say(status,
			       "no permission to open " GDRDRV_NODE " for reading and writing",
			       "ask for its group or mode");
		break;
	case EPROTO:
	case ENOTTY:
	case EINVAL:
		gdr_status_say(status, GDRDRV_NODE " speaks another ABI than gdrdrv 2", LOAD);
		break;
	default:
		snprintf(status->reason, sizeof(status->reason), "opening " GDRDRV_NODE ": %s",
			 strerror(error));
		snprintf(status->remedy, sizeof(status->remedy), "see dmesg");
	}
}

static void status(const struct gdr_cuda *cuda, int device, const struct gdr_node *node,
		   struct gdr_status *status)
{
	struct gdr_node own;
	int ret;

	*status = (struct gdr_status){0};
	if (device >= 0 && cuda && gdr_cuda_simulated(cuda) && !cuda->on_bar()) {
		gdr_status_say(status,
			       "the simulated GPU's memory is no PCI memory, which a kernel module "
			       "could pin",
			       "run it in QEMU, with the simulated GPU on a PCI BAR");
		return;
	}
	if (node) {
		status->usable = true;
		gdr_node_origin(node, status->reason, sizeof(status->reason));
		return;
	}
	ret = gdr_node_open(&own, GDRDRV_NODE);
	if (ret) {
		gdr_node_explain(-ret, status);
		return;
	}
	status->usable = true;
	gdr_node_origin(&own, status->reason, sizeof(status->reason));
	gdr_node_close(&own);
}

/* Whether a node that is NVIDIA's makes pins such as this. */
static int check_nvidias(const struct gdr_node *node, const struct gdr_request *request,
			 struct gdr_error *error)
{
	char origin[96];

	gdr_node_origin(node, origin, sizeof(origin));
	if (request->revocable == node->persistent)
		return gdr_fail(
			error, GDR_FAILED_UNAVAILABLE, EOPNOTSUPP,
			"%s makes %s pins only: pass revocable=%s, or load the module otherwise "
			"(its parameter use_persistent_mapping)",
			origin, node->persistent ? "persistent" : "revocable",
			request->revocable ? "False" : "True");
	if (request->revocable && !request->sigbus)
		return gdr_fail(error, GDR_FAILED_UNAVAILABLE, EOPNOTSUPP,
				"%s answers with SIGBUS where freed memory is touched: pass "
				"sigbus=True, or load gdrpy's module",
				origin);
	return 0;
}

/* GDRDRV_PIN_V3_... Who still maps the share of a pin that has ended finds zeros too. */
static uint32_t flags_of(const struct gdr_node *node, const struct gdr_request *request)
{
	uint32_t flags = request->force_pcie ? GDRDRV_PIN_V3_FORCE_PCIE : 0;

	if (!gdr_node_full(node))
		return flags;
	flags |= request->revocable ? GDRDRV_PIN_V3_REVOCABLE : GDRDRV_PIN_V3_PERSISTENT;
	return request->sigbus ? flags : flags | GDRDRV_PIN_V3_ZERO_AFTER;
}

/* Whether it lies in one allocation. Whole pages need not: the module finds what is there. */
static int check_range(const struct gdr_cuda *cuda, const struct gdr_request *request,
		       struct gdr_error *error)
{
	struct gdr_pointer pointer;
	struct gdr_range range;

	if (request->fd >= 0 || request->gpu_pages)
		return 0;
	return gdr_pointer_range(cuda, request->ptr, request->nbytes, 1, &pointer, &range, error);
}

static struct gdr_memory *take(const struct gdr_cuda *cuda, const struct gdr_request *request,
			       struct gdr_error *error)
{
	const struct gdr_node *node = request->node;
	struct gdr_pin_request pin = {
		.ptr = request->ptr,
		.nbytes = request->nbytes,
		.gpu_pages = request->gpu_pages,
		.persistent = !request->revocable,
	};
	struct gdr_memory *memory;

	if (!request->ptr) {
		gdr_fail(error, GDR_FAILED_HANDLE, EINVAL,
			 "the gdrdrv backend needs the GPU view: open it with gpu=True");
		return NULL;
	}
	if (!node) {
		gdr_fail(error, GDR_FAILED_UNAVAILABLE, ENODEV,
			 "no kernel module serves " GDRDRV_NODE ": " LOAD);
		return NULL;
	}
	if (check_range(cuda, request, error))
		return NULL;
	/* A region is persistent with NVIDIA's module, too, if that is how it is loaded. */
	if (!gdr_node_full(node) && request->fd < 0 && check_nvidias(node, request, error))
		return NULL;
	if (!gdr_node_full(node))
		pin.persistent = node->persistent;
	pin.flags = flags_of(node, request);
	memory = gdr_pin(node, &pin, error);
	if (memory) {
		memory->device = request->device;
		gdr_device_location(cuda, request->device, memory->location);
	}
	return memory;
}

static struct gdr_memory *take_export(int fd, uint64_t nbytes, int device, struct gdr_error *error)
{
	(void)nbytes;
	(void)device;
	return gdr_share_take(fd, error);
}

const struct gdr_backend gdr_backend_gdrdrv = {
	.name = "gdrdrv",
	.revocable_pins = true,
	.status = status,
	.take = take,
	.take_export = take_export,
};
