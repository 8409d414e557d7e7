"""Driver calls as the tests of the simulated driver make them."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from typing import Any

GRANULE = 2 << 20
READ, READ_WRITE = 1, 3


class Cuda:
    """Calls the driver, undoes at the end what it was told to, and makes the usual objects."""

    def __init__(self, driver: Any, undo: ExitStack) -> None:
        self.driver = driver
        self.undo = undo
        self.fd_type = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        self.dma_buf = driver.CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD

    def __call__(self, function: str, *arguments: Any) -> Any:
        """A call that must succeed: its value, or a tuple of them."""
        result, *values = getattr(self.driver, function)(*arguments)
        assert result.name == "CUDA_SUCCESS", (function, arguments, result)
        return values[0] if len(values) == 1 else tuple(values)

    def error(self, function: str, *arguments: Any) -> str:
        """The name of the CUresult of a call, less ``CUDA_ERROR_``."""
        name: str = getattr(self.driver, function)(*arguments)[0].name
        return name.removeprefix("CUDA_ERROR_")

    def later(self, function: str, *arguments: Any) -> None:
        """To be called when the test ends; the last one told is the first one done."""
        self.undo.callback(self, function, *arguments)

    def allocate(self, size: int) -> int:
        pointer = self("cuMemAlloc", size)
        self.later("cuMemFree", pointer)
        return int(pointer)

    def properties(self, *, device: int = 0, exportable: bool = True, rdma: bool = False) -> Any:
        properties = self.driver.CUmemAllocationProp()
        properties.type = self.driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location = self.location(device)
        if exportable:
            properties.requestedHandleTypes = self.fd_type
        properties.allocFlags.gpuDirectRDMACapable = int(rdma)
        return properties

    def location(self, device: int = 0) -> Any:
        location = self.driver.CUmemLocation()
        location.type = self.driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        location.id = device
        return location

    def create(self, size: int = GRANULE, **properties: Any) -> Any:
        handle = self("cuMemCreate", size, self.properties(**properties), 0)
        self.later("cuMemRelease", handle)
        return handle

    def reserve(self, size: int = GRANULE) -> int:
        pointer = self("cuMemAddressReserve", size, 0, 0, 0)
        self.later("cuMemAddressFree", pointer, size)
        return int(pointer)

    def access(self, flags: int = READ_WRITE, device: int = 0) -> Any:
        access = self.driver.CUmemAccessDesc()
        access.location = self.location(device)
        access.flags = self.driver.CUmemAccess_flags(flags)
        return access

    def map(self, pointer: int, handle: Any, size: int = GRANULE, flags: int = READ_WRITE) -> None:
        self("cuMemMap", pointer, size, 0, handle, 0)
        self.later("cuMemUnmap", pointer, size)
        self("cuMemSetAccess", pointer, size, [self.access(flags)], 1)

    def mapped(self, size: int = GRANULE, **properties: Any) -> int:
        """New memory at an address of its own."""
        handle = self.create(size, **properties)
        pointer = self.reserve(size)
        self.map(pointer, handle, size)
        return pointer

    def stream(self, flags: int = 1) -> Any:
        stream = self("cuStreamCreate", flags)
        self.later("cuStreamDestroy", stream)
        return stream

    def event(self, flags: int = 0) -> Any:
        event = self("cuEventCreate", flags)
        self.later("cuEventDestroy", event)
        return event

    def write(self, pointer: int, data: bytes) -> None:
        self("cuMemcpyHtoD", pointer, data, len(data))

    def read(self, pointer: int, size: int) -> bytes:
        buffer = bytearray(size)
        self("cuMemcpyDtoH", buffer, pointer, size)
        return bytes(buffer)

    def ipc_handle(self, pointer: int) -> bytes:
        """The 64 bytes by which another process opens the allocation that holds an address."""
        handle = self("cuIpcGetMemHandle", pointer)
        return ctypes.string_at(handle.getPtr(), 64)

    def ipc_handle_of(self, data: bytes) -> Any:
        handle = self.driver.CUipcMemHandle()
        ctypes.memmove(handle.getPtr(), data, 64)
        return handle

    def pointer_attribute(self, name: str, pointer: int) -> Any:
        attribute = getattr(self.driver.CUpointer_attribute, f"CU_POINTER_ATTRIBUTE_{name}")
        return self("cuPointerGetAttribute", attribute, pointer)

    def device_attribute(self, name: str, device: int = 0) -> int:
        attribute = getattr(self.driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        value: int = self("cuDeviceGetAttribute", attribute, device)
        return value
