"""What CUDA tells about a device pointer: the allocation that it lies in, and a handle of it."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass

from gdrpy import cuda
from gdrpy._resource import Undo
from gdrpy.errors import CudaError, InvalidHandle, SizeMismatch
from gdrpy.vmm import export

IPC_HANDLE_SIZE = 64


@dataclass(frozen=True)
class Range:
    """An allocation's GPU address and size in bytes."""

    base: int
    nbytes: int


def allocation_range(ptr: int, nbytes: int, device: int) -> Range:
    """The allocation that holds all of [ptr, ptr + nbytes). Raises InvalidHandle, SizeMismatch."""
    try:
        with cuda.context(device):
            base, size = cuda.call("cuMemGetAddressRange", ptr)
    except CudaError as error:
        raise InvalidHandle(
            f"{ptr:#x} is no GPU memory of this process ({error.name}): pass a pointer from "
            f"cuMemAlloc, cudaMalloc or a CUDA array, not a host address"
        ) from error
    if ptr + nbytes > int(base) + size:
        raise SizeMismatch(
            f"{nbytes} bytes at {ptr:#x} run past the end of the allocation, which has "
            f"{int(base) + size - ptr} bytes from there on"
        )
    return Range(int(base), size)


def device_of(ptr: int) -> int:
    """The ordinal of the device that a pointer's memory lies on. Raises InvalidHandle."""
    key = cuda.driver().CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    try:
        return int(cuda.call("cuPointerGetAttribute", key, ptr))
    except CudaError as error:
        raise InvalidHandle(
            f"{ptr:#x} is no memory that CUDA knows ({error.name}): pass a device pointer of this "
            f"process"
        ) from error


def export_of(undo: Undo, ptr: int) -> int | None:
    """A descriptor of the VMM allocation behind a pointer, closed by ``undo``; None if not VMM.

    Raises InvalidHandle where the allocation was not made to be exported.
    """
    try:
        handle = cuda.call("cuMemRetainAllocationHandle", ptr)
    except CudaError:
        return None
    with Undo() as release:
        release.callback(cuda.call, "cuMemRelease", handle)
        try:
            fd = export(handle)
        except CudaError as error:
            raise InvalidHandle(
                f"the VMM allocation at {ptr:#x} cannot be exported ({error.name}): its creator "
                f"must ask for POSIX file descriptor handles in cuMemCreate"
            ) from error
    undo.callback(os.close, fd)
    return fd


def ipc_handle(ptr: int, device: int) -> bytes:
    """The 64 bytes of the legacy IPC handle of a cuMemAlloc pointer.

    Such a handle lets any process of the machine map the memory: it is made only when a pointer is
    to be pinned. Raises InvalidHandle for memory that has none.
    """
    try:
        with cuda.context(device):
            handle = cuda.call("cuIpcGetMemHandle", ptr)
    except CudaError as error:
        raise InvalidHandle(
            f"the memory at {ptr:#x} has no IPC handle ({error.name}), so it is of a kind that "
            f"cannot be pinned this way (a cuMemAllocAsync pool, managed or host memory): use "
            f"cuMemAlloc, cudaMalloc or gdrpy.alloc"
        ) from error
    return ctypes.string_at(int(handle.getPtr()), IPC_HANDLE_SIZE)
