"""What CUDA tells about a device pointer: the allocation that it lies in, and a handle of it."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import Any

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


def allocation_range(ptr: int, nbytes: int) -> Range:
    """The allocation that holds all of [ptr, ptr + nbytes). Raises InvalidHandle, SizeMismatch."""
    base = int(_attribute(ptr, "RANGE_START_ADDR"))
    size = int(_attribute(ptr, "RANGE_SIZE"))
    if ptr + nbytes > base + size:
        raise SizeMismatch(
            f"{nbytes} bytes at {ptr:#x} run past the end of the allocation, which has "
            f"{base + size - ptr} bytes from there on"
        )
    return Range(base, size)


def device_of(ptr: int) -> int:
    """The ordinal of the device that a pointer's memory lies on. Raises InvalidHandle.

    The attribute that gives it is asked last: cuda-bindings 13.3 reads it as 0 on every device.
    """
    context = _attribute(ptr, "CONTEXT")
    if int(context):
        cuda.call("cuCtxPushCurrent", context)
        try:
            return int(cuda.call("cuCtxGetDevice"))
        finally:
            cuda.call("cuCtxPopCurrent")
    with Undo() as undo:
        handle = _retain(undo, ptr)
        if handle is not None:
            properties = cuda.call("cuMemGetAllocationPropertiesFromHandle", handle)
            return int(properties.location.id)
    return int(_attribute(ptr, "DEVICE_ORDINAL"))


def _attribute(ptr: int, name: str) -> Any:
    key = getattr(cuda.driver().CUpointer_attribute, f"CU_POINTER_ATTRIBUTE_{name}")
    try:
        return cuda.call("cuPointerGetAttribute", key, ptr)
    except CudaError as error:
        raise InvalidHandle(
            f"{ptr:#x} is no memory that CUDA knows ({error.name}): pass a pointer from "
            f"cuMemAlloc, cudaMalloc or a CUDA array of this process, not a host address"
        ) from error


def _retain(undo: Undo, ptr: int) -> Any:
    """The handle of the VMM allocation behind a pointer, released by ``undo``; None if not VMM."""
    try:
        handle = cuda.call("cuMemRetainAllocationHandle", ptr)
    except CudaError:
        return None
    undo.callback(cuda.call, "cuMemRelease", handle)
    return handle


def export_of(undo: Undo, ptr: int) -> int | None:
    """A descriptor of the VMM allocation behind a pointer, closed by ``undo``; None if not VMM.

    Raises InvalidHandle where the allocation was not made to be exported.
    """
    with Undo() as release:
        handle = _retain(release, ptr)
        if handle is None:
            return None
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
