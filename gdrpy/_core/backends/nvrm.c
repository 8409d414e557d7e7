/* SPDX-License-Identifier: MIT */
/*
 * Backend nvrm: the stock NVIDIA kernel driver, through its resource manager (RM). No kernel
 * module, no root, and for an exported allocation no CUDA either.
 *
 * VMM memory is taken in by its descriptor, cuMemAlloc memory by its IPC handle, after a self-check
 * of such handles on its device.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "backends/backends.h"
#include "common/forks.h"
#include "cuda/ipc.h"
#include "memory/private.h"
#include "rm/abi.h"

static pthread_mutex_t client_lock = PTHREAD_MUTEX_INITIALIZER;
/* Opened on first use and kept, because its devices are expensive to create. */
static struct core_rm *client;

/* Add the purpose of a failed call, unless an obstacle explains the failure. */
static int failed(struct core_error *error, const char *purpose)
{
	return error->failure == CORE_FAILED_UNAVAILABLE ? -1 : core_explain(error, "%s", purpose);
}

static int ready(struct core_error *error)
{
	int ret = 0;

	pthread_mutex_lock(&client_lock);
	if (!client)
		ret = core_rm_open(&client, error);
	pthread_mutex_unlock(&client_lock);
	return ret;
}

static int open_client(struct core_error *error)
{
	int ret = ready(error);

	return ret ? core_rm_explain_open(error) : 0;
}

static struct core_rm_gpu gpu_at(const int pci[3])
{
	return (struct core_rm_gpu){
		.pci_domain = (uint32_t)pci[0],
		.pci_bus = (uint8_t)pci[1],
		.pci_slot = (uint8_t)pci[2],
	};
}

static int map_block(struct core_memory *memory, struct core_stretch *stretch, bool readonly,
		     enum core_mapping_kind *kind, struct core_error *error)
{
	const struct core_part *part = stretch->part;
	struct core_rm_mapping mapping;
	char purpose[80];

	(void)memory;
	(void)kind;
	if (core_rm_map(client, &part->block, part->offset + stretch->offset, stretch->nbytes,
			readonly, stretch->at, &mapping, error)) {
		snprintf(purpose, sizeof(purpose), "mapping %zu bytes at offset %llu",
			 stretch->nbytes, (unsigned long long)stretch->offset);
		return failed(error, purpose);
	}
	stretch->map = mapping.map;
	stretch->token = mapping.linear;
	return 0;
}

static int unmap_block(struct core_memory *memory, struct core_stretch *stretch,
		       struct core_error *error)
{
	struct core_rm_mapping mapping = {
		.map = stretch->map,
		.device = stretch->part->block.device,
		.object = stretch->part->block.object,
		.linear = stretch->token,
	};

	(void)memory;
	return core_rm_unmap(client, &mapping, error) ? failed(error, "unmapping") : 0;
}

static int release_blocks(struct core_memory *memory, struct core_error *error)
{
	int ret = 0;

	for (unsigned int i = 0; i < memory->nparts; i++)
		if (core_rm_release(client, &memory->parts[i].block, error))
			ret = failed(error, "releasing GPU memory");
	return ret;
}

static const struct core_memory_functions functions = {
	.map = map_block,
	.unmap = unmap_block,
	.release = release_blocks,
};

/* New memory for blocks in the client, without parts; NULL with *error filled in. */
static struct core_memory *new_memory(uint64_t va, int device, struct core_error *error)
{
	struct core_memory *memory = NULL;

	if (!open_client(error))
		memory = core_memory_new(&core_backend_nvrm, &functions, sizeof(*memory), error);
	if (memory) {
		memory->va = va;
		memory->device = device;
		memory->kind = CORE_MAPPING_WC;
	}
	return memory;
}

/* Add a part of a block that was just taken into the client. */
static int add(struct core_memory *memory, const struct core_rm_memory *block, uint64_t offset,
	       uint64_t nbytes, struct core_error *error)
{
	struct core_part part = {.nbytes = nbytes, .offset = offset, .fd = -1, .block = *block};
	const struct core_rm_gpu *gpu = &block->gpu;
	struct core_error ignored;

	snprintf(memory->location, sizeof(memory->location), "%04x:%02x:%02x.0", gpu->pci_domain,
		 gpu->pci_bus, gpu->pci_slot);
	if (!core_memory_add(memory, &part, error))
		return 0;
	core_rm_release(client, block, &ignored);
	return -1;
}

/* A core_export_fn; nbytes 0: the whole allocation. */
static int add_export(void *memory, int fd, uint64_t offset, uint64_t nbytes,
		      struct core_error *error)
{
	struct core_rm_memory block;

	if (core_rm_import(client, fd, &block, error))
		return failed(error, "importing the allocation");
	return add(memory, &block, offset, nbytes ? nbytes : block.nbytes, error);
}

/*
 * Add a part of the block that an IPC handle names on the GPU at a PCI address; sibling as in
 * core_rm_duplicate(). CORE_FAILED_UNAVAILABLE if the block's size contradicts its handle.
 */
static int add_block(struct core_memory *memory, const int pci[3], int sibling,
		     const struct core_ipc_info *info, uint64_t offset, uint64_t nbytes,
		     struct core_error *error)
{
	const struct core_rm_gpu gpu = gpu_at(pci);
	struct core_rm_memory block;
	struct core_error ignored;

	if (core_rm_duplicate(client, &gpu, sibling, info, &block, error))
		return failed(error, "pinning a device pointer");
	if (core_ipc_compare(info, block.nbytes, error)) {
		core_rm_release(client, &block, &ignored);
		return -1;
	}
	return add(memory, &block, offset, nbytes, error);
}

bool core_nvrm_part(const struct core_memory *memory, unsigned int index, struct core_rm_gpu *gpu,
		    struct core_engine_block *block)
{
	const struct core_part *part = &memory->parts[index];

	if (memory->backend != &core_backend_nvrm || index >= memory->nparts)
		return false;
	*gpu = part->block.gpu;
	*block = (struct core_engine_block){core_rm_handle(client), part->block.object,
					    part->offset, part->nbytes};
	return true;
}

static struct core_memory *take_export(int fd, uint64_t nbytes, int device,
				       struct core_error *error)
{
	struct core_memory *memory = new_memory(0, device, error);

	if (memory && add_export(memory, fd, 0, nbytes, error))
		return core_memory_undo(memory);
	return memory;
}

/* The state of each device. */
#define MOST_DEVICES 64

static pthread_mutex_t device_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	bool exporting;
	int export;   /* the descriptor */
	bool proven;  /* its exports */
	bool checked; /* its IPC handles */
	bool split;   /* into MIG instances */
	struct core_ipc_scratch scratch[CORE_IPC_SCRATCHES];
	char problem[256]; /* found by the check, empty if none */
} devices[MOST_DEVICES];

/* The obstacle that status() found to each device; entry 0 is for no particular device. */
static struct {
	bool asked;
	const struct core_rm_obstacle *obstacle;
} known[MOST_DEVICES + 1];

/* Forks wait while the client is opened: a child's copy of its descriptor would keep it alive. */
static void lock_client(void)
{
	pthread_mutex_lock(&client_lock);
}

static void unlock_client(void)
{
	pthread_mutex_unlock(&client_lock);
}

/*
 * RM ties a client to the process that opened it, and the exports are already closed. A thread that
 * held device_lock does not exist in the child.
 */
static void begin_child(void)
{
	if (client)
		core_rm_abandon(client);
	client = NULL;
	unlock_client();
	pthread_mutex_init(&device_lock, NULL);
	for (int i = 0; i < MOST_DEVICES; i++)
		devices[i].exporting = false;
}

static void __attribute__((constructor)) watch_forks(void)
{
	pthread_atfork(lock_client, unlock_client, begin_child);
}

/*
 * The driver sets up exports of a device when the first is opened, and tears them down with the
 * last: half a millisecond each. Keeping one open spares every pin of VMM memory that time, and
 * costs the smallest allocation of the device, 2 MiB.
 */
static int export_device(const struct core_cuda *cuda, int device, struct core_error *error)
{
	size_t nbytes;
	int fd;

	if (!devices[device].exporting) {
		fd = core_device_export(cuda, device, &nbytes, error);
		if (fd < 0)
			return -1;
		devices[device].export = fd;
		devices[device].exporting = true;
	}
	return devices[device].export;
}

static void keep_exporting(const struct core_cuda *cuda, int device)
{
	struct core_error ignored;

	if (device < 0 || device >= MOST_DEVICES)
		return;
	pthread_mutex_lock(&device_lock);
	export_device(cuda, device, &ignored);
	pthread_mutex_unlock(&device_lock);
}

/*
 * The sibling for core_rm_duplicate(): this process's exports are in the same MIG instance. Called
 * with device_lock held.
 */
static int find_sibling(const struct core_cuda *cuda, int device, int *sibling,
			struct core_error *error)
{
	*sibling = devices[device].split ? export_device(cuda, device, error) : -1;
	return devices[device].split && *sibling < 0 ? -1 : 0;
}

static int add_duplicate(struct core_memory *memory, const struct core_cuda *cuda, int device,
			 int sibling, const struct core_ipc_info *info, uint64_t offset,
			 uint64_t nbytes, struct core_error *error)
{
	int pci[3];

	if (core_device_pci(cuda, device, pci))
		return core_fail(error, CORE_FAILED_UNAVAILABLE, ENODEV,
				 "CUDA does not report the PCI address of device %d", device);
	return add_block(memory, pci, sibling, info, offset, nbytes, error);
}

/* A core_ipc_read through a read-only mapping, called with device_lock held. */
static int read_allocation(const struct core_cuda *cuda, const struct core_pointer *pointer,
			   const struct core_ipc_info *info, uint64_t offset, void *bytes,
			   size_t nbytes, struct core_error *error)
{
	struct core_memory *memory = new_memory(pointer->base, pointer->device, error);
	struct core_view view;
	int sibling;

	if (!memory)
		return -1;
	if (find_sibling(cuda, pointer->device, &sibling, error) ||
	    add_duplicate(memory, cuda, pointer->device, sibling, info, info->block_offset + offset,
			  nbytes, error) ||
	    core_memory_map(memory, 0, nbytes, true, &view, error)) {
		core_memory_undo(memory);
		return -1;
	}
	core_copy_from(view.kind, bytes, view.map.address, nbytes);
	if (core_memory_unmap(memory, &view, error)) {
		core_memory_undo(memory);
		return -1;
	}
	return core_memory_release(memory, error);
}

/* Whether the failure is final: a lack of memory or of a permission may be temporary. */
static bool is_verdict(const struct core_error *error)
{
	return error->failure == CORE_FAILED_UNAVAILABLE ||
	       (error->failure == CORE_FAILED_CALL && error->status);
}

/* Whether a device is split into MIG instances. */
static bool is_split(const struct core_cuda *cuda, int device)
{
	struct core_rm_gpu gpu;
	int pci[3];

	if (core_device_pci(cuda, device, pci))
		return false;
	gpu = gpu_at(pci);
	return core_rm_split(client, &gpu);
}

/*
 * CORE_FAILED_UNAVAILABLE unless this driver's IPC handles are laid out as expected. Stores the
 * sibling for core_rm_duplicate().
 */
static int check_handles(const struct core_cuda *cuda, const struct core_pointer *pointer,
			 int *sibling, struct core_error *error)
{
	char problem[sizeof(devices[0].problem)] = "";
	char version[32];
	int ret = 0;

	if (pointer->device < 0 || pointer->device >= MOST_DEVICES)
		return core_fail(error, CORE_FAILED_UNAVAILABLE, ENODEV,
				 "nvrm can check pointers of %d devices, but not of device %d",
				 MOST_DEVICES, pointer->device);

	pthread_mutex_lock(&device_lock);
	if (!devices[pointer->device].checked) {
		devices[pointer->device].split = is_split(cuda, pointer->device);
		ret = core_ipc_check(cuda, pointer, devices[pointer->device].scratch,
				     read_allocation, error);
		devices[pointer->device].checked = !ret || is_verdict(error);
		if (ret && is_verdict(error))
			snprintf(devices[pointer->device].problem, sizeof(problem), "%.255s",
				 error->message);
	}
	if (!ret)
		ret = find_sibling(cuda, pointer->device, sibling, error);
	memcpy(problem, devices[pointer->device].problem, sizeof(problem));
	pthread_mutex_unlock(&device_lock);

	if (!problem[0])
		return ret;
	core_driver_version(version);
	return core_fail(
		error, CORE_FAILED_UNAVAILABLE, EOPNOTSUPP,
		"nvrm cannot pin cuMemAlloc pointers with NVIDIA driver %s: %s. Allocate with "
		"gdrpy.alloc() instead",
		version, problem);
}

/* Add a range of the block behind a cuMemAlloc pointer, which may exceed its allocation. */
static int add_part_of_block(struct core_memory *memory, const struct core_cuda *cuda,
			     const struct core_range *range, const struct core_pointer *pointer,
			     struct core_error *error)
{
	struct core_cuda_ipc handle;
	struct core_ipc_info info;
	uint64_t offset;
	int sibling;

	/* Memory without a handle says nothing about other handles, so this comes first. */
	if (core_pointer_ipc_handle(cuda, pointer, &handle, error) ||
	    check_handles(cuda, pointer, &sibling, error) ||
	    core_ipc_parse(&handle, pointer, &info, error) ||
	    core_ipc_offset(&info, pointer, range, &offset, error))
		return -1;
	return add_duplicate(memory, cuda, pointer->device, sibling, &info, offset,
			     range->end - range->start, error);
}

static struct core_memory *take_pointer(const struct core_cuda *cuda,
					const struct core_request *request,
					const struct core_found *found, struct core_error *error)
{
	const struct core_pointer *pointer = &found->pointer;
	const struct core_range *range = &found->range;
	struct core_memory *memory = new_memory(range->start, pointer->device, error);
	int ret;

	if (!memory)
		return NULL;
	if (request->gpu_pages)
		memory->page_size = GDRDRV_GPU_PAGE_SIZE;
	if (!pointer->context)
		keep_exporting(cuda, pointer->device);
	ret = core_pointer_exports(cuda, pointer, range, add_export, memory, error);
	if (!ret)
		ret = add_part_of_block(memory, cuda, range, pointer, error);
	if (ret < 0)
		return core_memory_undo(memory);
	if (memory->nparts == 1)
		core_pointer_id(cuda, pointer->ptr, &memory->buffer_id);
	return memory;
}

/* Whether the driver reports an exported allocation correctly, and can map it. */
static int check_export(int fd, size_t nbytes, int device, struct core_error *error)
{
	struct core_memory *memory = take_export(fd, 0, device, error);
	struct core_view view;

	if (!memory)
		return -1;
	if (memory->nbytes != nbytes) {
		core_fail(error, CORE_FAILED_UNAVAILABLE, EOPNOTSUPP,
			  "the driver reports %llu bytes for an exported allocation of %zu",
			  (unsigned long long)memory->nbytes, nbytes);
		goto undo;
	}
	if (core_memory_map(memory, 0, 1, true, &view, error) ||
	    core_memory_unmap(memory, &view, error))
		goto undo;
	return core_memory_release(memory, error);
undo:
	core_memory_undo(memory);
	return -1;
}

/* Without memory or descriptors for an allocation, the check has no result. */
static int check_exports(const struct core_cuda *cuda, int device, struct core_error *error)
{
	size_t nbytes;
	int ret = 0, fd;

	pthread_mutex_lock(&device_lock);
	if (!devices[device].proven) {
		fd = core_device_export(cuda, device, &nbytes, error);
		if (fd >= 0) {
			ret = check_export(fd, nbytes, device, error);
			devices[device].proven = !ret;
			core_private_close(fd);
		} else if (error->failure != CORE_FAILED_MEMORY &&
			   error->status != CORE_CUDA_OPERATING_SYSTEM)
			ret = -1;
	}
	pthread_mutex_unlock(&device_lock);
	return ret;
}

static int prove(const struct core_cuda *cuda, int device, void *context, struct core_error *error)
{
	const struct core_pointer near = {.context = context, .device = device};
	int sibling;

	if (device < MOST_DEVICES && check_exports(cuda, device, error))
		return -1;
	return context ? check_handles(cuda, &near, &sibling, error) : 0;
}

static struct core_memory *take(const struct core_cuda *cuda, const struct core_request *request,
				const struct core_found *found, struct core_error *error)
{
	struct core_memory *memory;

	if (request->force_pcie)
		return core_fail_null(
			error, CORE_FAILED_UNAVAILABLE, EINVAL,
			"nvrm has no flag to force mappings through PCIe: they all go there");
	if (request->fd < 0)
		return take_pointer(cuda, request, found, error);
	memory = take_export(request->fd, request->nbytes, request->device, error);
	if (memory)
		memory->va = request->ptr;
	return memory;
}

/* Asked once: the answer does not change while this process uses the driver. */
static const struct core_rm_obstacle *obstacle_of(const struct core_cuda *cuda, int device)
{
	const struct core_rm_obstacle *obstacle;
	int i = device < 0 || device >= MOST_DEVICES ? 0 : device + 1, pci[3];
	bool found = i && cuda && !core_device_pci(cuda, device, pci);
	struct core_rm_gpu gpu;

	if (found)
		gpu = gpu_at(pci);
	pthread_mutex_lock(&device_lock);
	if (!known[i].asked) {
		known[i].obstacle = core_rm_find_obstacle(client, found ? &gpu : NULL);
		known[i].asked = true;
	}
	obstacle = known[i].obstacle;
	pthread_mutex_unlock(&device_lock);
	return obstacle;
}

/* The version does not change while the driver is in use. */
static char driver[32];
static pthread_once_t driver_once = PTHREAD_ONCE_INIT;

static void read_version(void)
{
	core_driver_version(driver);
}

static void say_version(struct core_status *status)
{
	pthread_once(&driver_once, read_version);
	if (!driver[0])
		core_status_say(status, "driver of unknown version", "");
	else if (core_driver_tested(driver))
		snprintf(status->reason, sizeof(status->reason), "driver %s", driver);
	else
		snprintf(status->reason, sizeof(status->reason),
			 "driver %s, untested: compared with %s to %s", driver, CORE_RM_TESTED_MIN,
			 CORE_RM_TESTED_MAX);
}

static void status(const struct core_cuda *cuda, int device, const struct core_node *node,
		   struct core_status *status)
{
	struct core_error error;
	const bool open = !ready(&error);
	const struct core_rm_obstacle *obstacle =
		open ? obstacle_of(cuda, device) : core_rm_open_obstacle(error.number);

	(void)node;
	*status = (struct core_status){.usable = open && !obstacle};
	if (status->usable)
		say_version(status);
	else if (obstacle)
		core_status_say(status, obstacle->reason, obstacle->remedy);
	else {
		core_status_say(status, "", "see dmesg");
		snprintf(status->reason, sizeof(status->reason), "%s: %s", error.call,
			 strerror(error.number));
	}
}

const struct core_backend core_backend_nvrm = {
	.name = "nvrm",
	.status = status,
	.prove = prove,
	.take = take,
	.take_export = take_export,
};
