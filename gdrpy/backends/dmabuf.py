"""Backend ``dmabuf``: the dma-buf of a device range, which drivers from CUDA 13.3 on let be mapped.

Source: CUDA driver API, cuMemGetHandleForAddressRange and
CU_DEVICE_ATTRIBUTE_DMA_BUF_MMAP_SUPPORTED.
"""

from __future__ import annotations

import os
import platform

from gdrpy import cuda
from gdrpy._fd import describe
from gdrpy._pci import pci_name
from gdrpy._resource import Undo
from gdrpy.backends import pointer
from gdrpy.backends.base import Backend
from gdrpy.backends.fdmemory import FdMemory
from gdrpy.backends.memory import Memory
from gdrpy.backends.records import PinRequest, Status
from gdrpy.errors import CudaError, InvalidHandle
from gdrpy.mappingtype import MappingType

_MMAP_SUPPORTED = "CU_DEVICE_ATTRIBUTE_DMA_BUF_MMAP_SUPPORTED"


class DmabufBackend(Backend):
    """Maps any device pointer, and needs nothing but a driver new enough."""

    name = "dmabuf"
    takes_exports = False

    def _status(self, device: int | None) -> Status:
        if device is None:
            return Status(False, "needs a CUDA device in this process", "open it with gpu=True")
        known = getattr(cuda.driver().CUdevice_attribute, _MMAP_SUPPORTED, None)
        if known is None:
            return Status(
                False,
                "this version of cuda-bindings cannot ask whether dma-bufs can be mapped",
                "pip install 'cuda-bindings>=13.3'",
            )
        if cuda.attribute(device, _MMAP_SUPPORTED.removeprefix("CU_DEVICE_ATTRIBUTE_")):
            return Status(True, "the driver lets dma-bufs be mapped")
        return Status(
            False,
            "this CUDA driver does not let the CPU map a dma-buf",
            "use a driver of CUDA 13.3 or newer",
        )

    def from_export(self, fd: int) -> Memory:
        raise InvalidHandle(
            f"file descriptor {fd} is {describe(fd)}: the dmabuf backend maps device pointers only"
        )

    def from_allocation(self, fd: int, ptr: int | None, size: int, device: int) -> Memory:
        del fd
        if ptr is None:
            raise InvalidHandle("the dmabuf backend needs the GPU view: open it with gpu=True")
        return self._range(ptr, size, device)

    def from_pointer(self, ptr: int, nbytes: int, device: int, request: PinRequest) -> Memory:
        del request
        return self._range(ptr, nbytes, device)

    def _range(self, ptr: int, nbytes: int, device: int) -> Memory:
        found = pointer.allocation_range(ptr, nbytes)
        start = ptr - ptr % self.page_size
        end = -(-(ptr + nbytes) // self.page_size) * self.page_size
        if start < found.base:
            raise InvalidHandle(
                f"the allocation at {found.base:#x} does not begin on a page of {self.page_size} "
                f"bytes, as a dma-buf must"
            )
        kind = cuda.driver().CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
        with Undo() as undo, cuda.context(device):
            try:
                fd = int(cuda.call("cuMemGetHandleForAddressRange", start, end - start, kind, 0))
            except CudaError as error:
                raise InvalidHandle(
                    f"the driver gives no dma-buf for {nbytes} bytes at {ptr:#x} ({error.name})"
                ) from error
            undo.callback(os.close, fd)
            return FdMemory(
                undo.pop_all(),
                fd,
                ptr - start,
                nbytes,
                mapping_type=_mapping_type(),
                backend=self.name,
                location=pci_name(*cuda.pci_address(device)),
            )


def _mapping_type() -> MappingType:
    """Cached where CPU and GPU memory are coherent, as on Grace; else write-combined."""
    if cuda.simulated() or platform.machine() == "aarch64":
        return MappingType.CACHED
    return MappingType.WRITE_COMBINED
