/* SPDX-License-Identifier: MIT */
/* Backend sim: simulated GPU memory, whose blocks are memory files or parts of a BAR. */
#include <errno.h>
#include <stdio.h>

#include "backends/backends.h"
#include "cuda/ipc.h"
#include "memory/private.h"

static void status(const struct core_cuda *cuda, int device, const struct core_node *node,
		   struct core_status *status)
{
	(void)device;
	(void)node;
	*status = (struct core_status){.usable = cuda && core_cuda_simulated(cuda)};
	if (!cuda)
		core_status_say(status, "needs a CUDA device in this process",
				"open it with gpu=True");
	else if (!status->usable)
		core_status_say(status, "a real GPU is in use",
				"set GDRPY_SIM=1 to use the simulated one");
	else
		core_status_say(status, "the simulated GPU is in use", "");
}

static struct core_memory *new_memory(uint64_t va, int device, struct core_error *error)
{
	struct core_memory *memory = core_memory_new(&core_backend_sim, &core_fd_memory_functions,
						     sizeof(*memory), error);

	if (memory) {
		memory->va = va;
		memory->device = device;
		memory->kind = CORE_MAPPING_CACHED;
		snprintf(memory->location, sizeof(memory->location), "simulated GPU %d", device);
	}
	return memory;
}

static struct core_memory *take_export(int fd, uint64_t nbytes, int device,
				       struct core_error *error)
{
	struct core_part part = {.nbytes = nbytes};
	struct core_memory *memory = new_memory(0, device, error);

	if (memory && core_fd_add(memory, fd, &part, error))
		return core_memory_undo(memory);
	return memory;
}

/* A core_export_fn. */
static int add_export(void *memory, int fd, uint64_t offset, uint64_t nbytes,
		      struct core_error *error)
{
	struct core_part part = {.nbytes = nbytes, .offset = offset};

	return core_fd_add(memory, fd, &part, error);
}

/* In the simulated driver, a block's handle is its descriptor in the owner, here this process. */
static int add_block(struct core_memory *memory, const struct core_cuda *cuda,
		     const struct core_pointer *pointer, const struct core_range *range,
		     struct core_error *error)
{
	struct core_ipc_info info;
	uint64_t offset;

	if (core_ipc_find(cuda, pointer, &info, error) ||
	    core_ipc_offset(&info, pointer, range, &offset, error))
		return -1;
	return add_export(memory, (int)info.object, offset, range->end - range->start, error);
}

static struct core_memory *take(const struct core_cuda *cuda, const struct core_request *request,
				const struct core_found *found, struct core_error *error)
{
	const struct core_pointer *pointer = &found->pointer;
	const struct core_range *range = &found->range;
	struct core_memory *memory;
	int ret;

	if (request->fd >= 0) {
		memory = take_export(request->fd, request->nbytes, request->device, error);
		if (memory)
			memory->va = request->ptr;
		return memory;
	}
	if (request->force_pcie)
		return core_fail_null(error, CORE_FAILED_UNAVAILABLE, EINVAL,
				      "the simulated GPU has no PCIe");
	memory = new_memory(range->start, pointer->device, error);
	if (!memory)
		return NULL;
	if (request->gpu_pages)
		memory->page_size = GDRDRV_GPU_PAGE_SIZE;
	ret = core_pointer_exports(cuda, pointer, range, add_export, memory, error);
	if (!ret)
		ret = add_block(memory, cuda, pointer, range, error);
	return ret < 0 ? core_memory_undo(memory) : memory;
}

const struct core_backend core_backend_sim = {
	.name = "sim",
	.status = status,
	.take = take,
	.take_export = take_export,
};
