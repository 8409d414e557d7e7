/* SPDX-License-Identifier: MIT */
/* Memory in the client, and its mappings. */
#include <errno.h>

#include "common/forks.h"
#include "rm/private.h"

static int object_nbytes(struct core_rm *client, uint32_t object, uint64_t *nbytes,
			 struct core_error *error)
{
	struct nvrm_surface_entry entry = {.index = NVRM_SURFACE_SIZE};
	struct nvrm_surface_info info = {.count = 1, .entries = (uintptr_t)&entry};

	if (core_rm_control(client, "GET_SURFACE_INFO", object, NVRM_CTRL_GET_SURFACE_INFO, &info,
			    sizeof(info), error))
		return -1;

	*nbytes = (uint64_t)entry.value * NVRM_SURFACE_SIZE_UNIT;
	return 0;
}

/* The last step of import and duplicate: read the size of the new object. */
static int memory_finish(struct core_rm *client, const struct core_rm_device *device,
			 uint32_t object, struct core_rm_memory *memory, struct core_error *error)
{
	struct core_error ignored;

	memory->gpu = device->gpu;
	memory->device = device->handle;
	memory->object = object;

	if (object_nbytes(client, object, &memory->nbytes, error)) {
		core_rm_free(client, device->handle, object, &ignored);
		return -1;
	}
	if (!memory->nbytes) {
		core_rm_free(client, device->handle, object, &ignored);
		return core_fail_call(error, EIO, 0, "GET_SURFACE_INFO (memory of size 0)");
	}
	return 0;
}

/* A call that refuses a descriptor says that it is not an export. */
static int refused(struct core_error *error)
{
	if (error->failure == CORE_FAILED_CALL && error->number == EINVAL)
		error->failure = CORE_FAILED_HANDLE;
	return -1;
}

/* The GPU of exported memory, and its MIG instance if the driver reports it. */
static int export_info(struct core_rm *client, int fd, struct nvrm_export_info *info,
		       struct core_error *error)
{
	uint32_t size = sizeof(*info);

	*info = (struct nvrm_export_info){.fd = fd};
	if (core_rm_control_grown(client, "GET_EXPORT_OBJECT_INFO", client->handle,
				  NVRM_CTRL_GET_EXPORT_OBJECT_INFO, info, &size,
				  NVRM_EXPORT_INFO_OLD_SIZE, error))
		return refused(error);
	if (size == NVRM_EXPORT_INFO_OLD_SIZE)
		info->gpu_instance = NVRM_NO_INSTANCE;
	return 0;
}

int core_rm_export_gpu(struct core_rm *client, int fd, struct core_rm_gpu *gpu,
		       struct core_error *error)
{
	struct nvrm_export_info info;

	return export_info(client, fd, &info, error) ||
			       core_rm_find_card(client, NULL, &info.device_instance, gpu, error)
		       ? -1
		       : 0;
}

int core_rm_import(struct core_rm *client, int fd, struct core_rm_memory *memory,
		   struct core_error *error)
{
	struct nvrm_import import = {.fd = fd, .count = 1};
	struct nvrm_export_info info;
	const struct core_rm_device *device;
	struct core_error ignored;

	if (export_info(client, fd, &info, error))
		return -1;

	device = core_rm_device(client, info.device_instance, info.gpu_instance, NULL, error);
	if (!device)
		return -1;

	import.parent = device->handle;
	import.objects[0] = core_rm_new_handle(client);
	if (core_rm_control(client, "IMPORT_OBJECTS_FROM_FD", client->handle,
			    NVRM_CTRL_IMPORT_OBJECTS_FROM_FD, &import, sizeof(import), error)) {
		core_rm_explain(client, device, error);
		return refused(error);
	}

	if (import.types[0] != NVRM_OBJECT_VIDEO_MEMORY) {
		core_rm_free(client, device->handle, import.objects[0], &ignored);
		return core_fail_call(error, EOPNOTSUPP, 0,
				      "IMPORT_OBJECTS_FROM_FD (not GPU memory)");
	}
	return memory_finish(client, device, import.objects[0], memory, error);
}

int core_rm_duplicate(struct core_rm *client, const struct core_rm_gpu *wanted, int sibling,
		      const struct core_ipc_info *source, struct core_rm_memory *memory,
		      struct core_error *error)
{
	struct nvrm_dup dup = {
		.client = client->handle,
		.source_client = source->client,
		.source_object = source->object,
	};
	struct nvrm_export_info info = {.gpu_instance = NVRM_NO_INSTANCE};
	const struct core_rm_device *device;
	struct core_rm_gpu gpu;
	uint32_t instance;

	if (core_rm_find_card(client, wanted, &instance, &gpu, error) ||
	    (sibling >= 0 && export_info(client, sibling, &info, error)))
		return -1;

	device = core_rm_device(client, instance, info.gpu_instance, &gpu, error);
	if (!device)
		return -1;

	dup.parent = device->handle;
	dup.object = core_rm_new_handle(client);
	if (core_rm_call(client, "RM_DUP_OBJECT", NVRM_IOCTL_DUP, &dup, &dup.status, error)) {
		core_rm_explain(client, device, error);
		return -1;
	}

	return memory_finish(client, device, dup.object, memory, error);
}

int core_rm_release(struct core_rm *client, const struct core_rm_memory *memory,
		    struct core_error *error)
{
	return core_rm_free(client, memory->device, memory->object, error);
}

static int rm_unmap(struct core_rm *client, const struct core_rm_mapping *mapping,
		    struct core_error *error)
{
	struct nvrm_unmap arg = {
		.client = client->handle,
		.device = mapping->device,
		.memory = mapping->object,
		.linear = mapping->linear,
	};

	return core_rm_call(client, "RM_UNMAP_MEMORY", NVRM_IOCTL_UNMAP, &arg, &arg.status, error);
}

int core_rm_map(struct core_rm *client, const struct core_rm_memory *memory, uint64_t offset,
		size_t nbytes, bool readonly, void *at, struct core_rm_mapping *mapping,
		struct core_error *error)
{
	struct core_error ignored;
	struct nvrm_map arg = {
		.client = client->handle,
		.device = memory->device,
		.memory = memory->object,
		.offset = core_map_pages(&mapping->map, offset, nbytes),
		.length = mapping->map.length,
	};
	int ret;

	/* A descriptor carries one mapping, and may be closed after mmap(). */
	arg.fd = core_rm_open_node(memory->gpu.minor, error);
	if (arg.fd < 0)
		return -1;

	ret = core_rm_call(client, "RM_MAP_MEMORY", NVRM_IOCTL_MAP, &arg, &arg.status, error);
	if (ret) {
		core_rm_explain(client, core_rm_device_of(client, memory->device), error);
		goto close_node;
	}

	mapping->device = memory->device;
	mapping->object = memory->object;
	mapping->linear = arg.linear;

	ret = core_map_fd(&mapping->map, arg.fd, 0, offset, readonly, at);
	if (ret) {
		ret = core_fail_call(error, -ret, 0, "mmap");
		rm_unmap(client, mapping, &ignored);
	}

close_node:
	core_private_close(arg.fd);
	return ret;
}

int core_rm_unmap(struct core_rm *client, struct core_rm_mapping *mapping, struct core_error *error)
{
	/* RM leaves the page tables alone: pages still mapped here would outlive the object. */
	int ret = core_map_undo(&mapping->map);

	if (ret)
		return core_fail_call(error, -ret, 0, "munmap");
	return rm_unmap(client, mapping, error);
}
