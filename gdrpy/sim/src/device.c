/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "sim.h"

static const int attributes[] = {
	[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024,
	[CU_DEVICE_ATTRIBUTE_WARP_SIZE] = 32,
	[CU_DEVICE_ATTRIBUTE_MAX_PITCH] = 2147483647,
	[CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT] = 512,
	[CU_DEVICE_ATTRIBUTE_GPU_OVERLAP] = 1,
	[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT] = 1,
	[CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY] = 1,
	[CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT] = 1,
	[CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING] = 1,
	[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = 9,
	[CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED] = 1,
	[CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM] = 1,
	[CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED] = 1,
	[CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED] = 1,
	[CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED] = 1,
	[CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED] = 1,
	[CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED] = 1,
	[CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED] = 1,
	[CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS] = 1,
	[CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING] = 100,
	[CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS] = 1,
	[CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR] = 1,
	[CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED] = 1,
	[CU_DEVICE_ATTRIBUTE_NUMA_ID] = -1,
	[CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID] = -1,
	/* Attributes of CUDA 13.0 that are not listed are 0. */
	[CU_DEVICE_ATTRIBUTE_LAST_OF_13_0] = 0,
	/* Newer than the simulated version, but supported: the memory can be mapped. */
	[CU_DEVICE_ATTRIBUTE_DMA_BUF_MMAP_SUPPORTED] = 1,
};

/* Device N sits at 0000:(N + 1):00.0. */
static int pci_bus(int ordinal)
{
	return ordinal + 1;
}

static CUresult check(CUdevice device)
{
	return device_get(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetCount(int *count)
{
	API(cuDeviceGetCount, NEEDS_INIT);

	REQUIRE(count);
	*count = sim.device_count;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	API(cuDeviceGet, NEEDS_INIT);

	REQUIRE(device);
	TRY(check(ordinal));
	*device = ordinal;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
	API(cuDeviceGetName, NEEDS_INIT);

	REQUIRE(name && length >= 1);
	TRY(check(device));
	snprintf(name, (size_t)length, "gdrpy simulated GPU");
	return CUDA_SUCCESS;
}

static CUresult get_uuid(CUuuid *uuid, CUdevice device)
{
	REQUIRE(uuid);
	TRY(check(device));
	memcpy(uuid->bytes, "gdrpy simulated", sizeof(uuid->bytes));
	uuid->bytes[15] = (char)device;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	API(cuDeviceGetUuid, NEEDS_INIT);
	return get_uuid(uuid, device);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	API(cuDeviceGetUuid_v2, NEEDS_INIT);
	return get_uuid(uuid, device);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	API(cuDeviceTotalMem_v2, NEEDS_INIT);

	REQUIRE(bytes);
	TRY(check(device));
	*bytes = device_get(device)->total;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
	API(cuDeviceGetAttribute, NEEDS_INIT);

	REQUIRE(value);
	TRY(check(device));
	REQUIRE(attribute >= 1 && (attribute <= CU_DEVICE_ATTRIBUTE_LAST_OF_13_0 ||
				   attribute == CU_DEVICE_ATTRIBUTE_DMA_BUF_MMAP_SUPPORTED));
	if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)
		*value = pci_bus(device);
	else if (attribute == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED)
		*value = sim.fabric != FABRIC_ABSENT;
	else
		*value = attributes[attribute];
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice device)
{
	API(cuDeviceGetPCIBusId, NEEDS_INIT);
	char text[sizeof("0000:00:00.0")];

	REQUIRE(id && length >= (int)sizeof(text));
	TRY(check(device));
	snprintf(text, sizeof(text), "0000:%02x:00.0", (unsigned char)pci_bus(device));
	memcpy(id, text, sizeof(text));
	return CUDA_SUCCESS;
}

/* [domain:]bus:device.function or domain:bus:device, hexadecimal; the rest is ignored. */
static bool parse_bus_id(const char *id, unsigned int *domain, unsigned int *bus,
			 unsigned int *device, unsigned int *function)
{
	*function = 0;
	if (sscanf(id, "%x:%x:%x.%x", domain, bus, device, function) >= 3)
		return true;
	*domain = 0;
	return sscanf(id, "%x:%x.%x", bus, device, function) == 3;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id)
{
	API(cuDeviceGetByPCIBusId, NEEDS_INIT);
	unsigned int domain, bus, slot, function;

	REQUIRE(device && id && parse_bus_id(id, &domain, &bus, &slot, &function));
	for (int i = 0; i < sim.device_count; i++) {
		if (domain || slot || function || bus != (unsigned int)pci_bus(i))
			continue;
		*device = i;
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
	API(cuDeviceCanAccessPeer, NEEDS_INIT);

	REQUIRE(can);
	if (!device_get(device) || !device_get(peer))
		return CUDA_ERROR_INVALID_DEVICE;
	*can = sim.peers && device != peer;
	return CUDA_SUCCESS;
}
