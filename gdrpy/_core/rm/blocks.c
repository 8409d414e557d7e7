/* SPDX-License-Identifier: MIT */
/* Memory in the client, and its mappings. */
#include <errno.h>

#include "common/forks.h"
#include "rm/private.h"

static int object_nbytes(struct gdr_nvrm *client, uint32_t object, uint64_t *nbytes,
			 struct gdr_error *error)
{
	struct nvrm_surface_entry entry = {.index = NVRM_SURFACE_SIZE};
	struct nvrm_surface_info info = {.count = 1, .entries = (uintptr_t)&entry};

	if (gdr_rm_control(client, "GET_SURFACE_INFO", object, NVRM_CTRL_GET_SURFACE_INFO, &info,
			   sizeof(info), error))
		return -1;

	*nbytes = (uint64_t)entry.value * NVRM_SURFACE_SIZE_UNIT;
	return 0;
}

/* The last step of import and duplicate: the object is in the client, so learn its size. */
static int memory_finish(struct gdr_nvrm *client, const struct gdr_rm_device *device,
			 uint32_t object, struct gdr_nvrm_memory *memory, struct gdr_error *error)
{
	struct gdr_error ignored;

	memory->gpu = device->gpu;
	memory->device = device->handle;
	memory->object = object;

	if (object_nbytes(client, object, &memory->nbytes, error)) {
		gdr_rm_free(client, device->handle, object, &ignored);
		return -1;
	}
	if (!memory->nbytes) {
		gdr_rm_free(client, device->handle, object, &ignored);
		return gdr_fail_call(error, EIO, 0, "GET_SURFACE_INFO (memory of no bytes)");
	}
	return 0;
}

/* Which GPU exported memory is on, and in which MIG instance, as far as the driver tells. */
static int export_info(struct gdr_nvrm *client, int fd, struct nvrm_export_info *info,
		       struct gdr_error *error)
{
	uint32_t size = sizeof(*info);

	*info = (struct nvrm_export_info){.fd = fd};
	if (gdr_rm_control_grown(client, "GET_EXPORT_OBJECT_INFO", client->handle,
				 NVRM_CTRL_GET_EXPORT_OBJECT_INFO, info, &size,
				 NVRM_EXPORT_INFO_OLD_SIZE, error))
		return -1;
	if (size == NVRM_EXPORT_INFO_OLD_SIZE)
		info->gpu_instance = NVRM_NO_INSTANCE;
	return 0;
}

int gdr_nvrm_import(struct gdr_nvrm *client, int fd, struct gdr_nvrm_memory *memory,
		    struct gdr_error *error)
{
	struct nvrm_import import = {.fd = fd, .count = 1};
	struct nvrm_export_info info;
	const struct gdr_rm_device *device;
	struct gdr_error ignored;

	if (export_info(client, fd, &info, error))
		return -1;

	device = gdr_rm_device(client, info.device_instance, info.gpu_instance, NULL, error);
	if (!device)
		return -1;

	import.parent = device->handle;
	import.objects[0] = gdr_rm_new_handle(client);
	if (gdr_rm_control(client, "IMPORT_OBJECTS_FROM_FD", client->handle,
			   NVRM_CTRL_IMPORT_OBJECTS_FROM_FD, &import, sizeof(import), error)) {
		gdr_rm_explain(client, device, error);
		return -1;
	}

	if (import.types[0] != NVRM_OBJECT_VIDEO_MEMORY) {
		gdr_rm_free(client, device->handle, import.objects[0], &ignored);
		return gdr_fail_call(error, EOPNOTSUPP, 0,
				     "IMPORT_OBJECTS_FROM_FD (not GPU memory)");
	}
	return memory_finish(client, device, import.objects[0], memory, error);
}

int gdr_nvrm_duplicate(struct gdr_nvrm *client, const struct gdr_nvrm_gpu *wanted, int sibling,
		       const struct gdr_ipc_info *source, struct gdr_nvrm_memory *memory,
		       struct gdr_error *error)
{
	struct nvrm_dup dup = {
		.client = client->handle,
		.source_client = source->client,
		.source_object = source->object,
	};
	struct nvrm_export_info info = {.gpu_instance = NVRM_NO_INSTANCE};
	const struct gdr_rm_device *device;
	struct gdr_nvrm_gpu gpu;
	uint32_t instance;

	if (gdr_rm_find_card(client, wanted, &instance, &gpu, error) ||
	    (sibling >= 0 && export_info(client, sibling, &info, error)))
		return -1;

	device = gdr_rm_device(client, instance, info.gpu_instance, &gpu, error);
	if (!device)
		return -1;

	dup.parent = device->handle;
	dup.object = gdr_rm_new_handle(client);
	if (gdr_rm_call(client, "RM_DUP_OBJECT", NVRM_IOCTL_DUP, &dup, &dup.status, error)) {
		gdr_rm_explain(client, device, error);
		return -1;
	}

	return memory_finish(client, device, dup.object, memory, error);
}

int gdr_nvrm_release(struct gdr_nvrm *client, const struct gdr_nvrm_memory *memory,
		     struct gdr_error *error)
{
	return gdr_rm_free(client, memory->device, memory->object, error);
}

static int rm_unmap(struct gdr_nvrm *client, const struct gdr_nvrm_mapping *mapping,
		    struct gdr_error *error)
{
	struct nvrm_unmap arg = {
		.client = client->handle,
		.device = mapping->device,
		.memory = mapping->object,
		.linear = mapping->linear,
	};

	return gdr_rm_call(client, "RM_UNMAP_MEMORY", NVRM_IOCTL_UNMAP, &arg, &arg.status, error);
}

int gdr_nvrm_map(struct gdr_nvrm *client, const struct gdr_nvrm_memory *memory, uint64_t offset,
		 size_t nbytes, bool readonly, void *at, struct gdr_nvrm_mapping *mapping,
		 struct gdr_error *error)
{
	struct gdr_error ignored;
	struct nvrm_map arg = {
		.client = client->handle,
		.device = memory->device,
		.memory = memory->object,
		.offset = gdr_map_pages(&mapping->map, offset, nbytes),
		.length = mapping->map.length,
	};
	int ret;

	/* A descriptor carries one mapping, and may be closed once mmap has it. */
	arg.fd = gdr_rm_open_node(memory->gpu.minor, error);
	if (arg.fd < 0)
		return -1;

	ret = gdr_rm_call(client, "RM_MAP_MEMORY", NVRM_IOCTL_MAP, &arg, &arg.status, error);
	if (ret) {
		gdr_rm_explain(client, gdr_rm_device_of(client, memory->device), error);
		goto close_node;
	}

	mapping->device = memory->device;
	mapping->object = memory->object;
	mapping->linear = arg.linear;

	ret = gdr_map_fd(&mapping->map, arg.fd, 0, offset, readonly, at);
	if (ret) {
		ret = gdr_fail_call(error, -ret, 0, "mmap");
		rm_unmap(client, mapping, &ignored);
	}

close_node:
	gdr_private_close(arg.fd);
	return ret;
}

int gdr_nvrm_unmap(struct gdr_nvrm *client, struct gdr_nvrm_mapping *mapping,
		   struct gdr_error *error)
{
	/* RM leaves the page tables alone: pages still mapped here would outlive the object. */
	int ret = gdr_map_undo(&mapping->map);

	if (ret)
		return gdr_fail_call(error, -ret, 0, "munmap");
	return rm_unmap(client, mapping, error);
}
