"""CUDA's virtual memory management: allocations that other processes can import."""

from __future__ import annotations

import functools
import os
from typing import Any

from gdrpy import cuda
from gdrpy._core._mapping import Undo
from gdrpy.common.arguments import as_size
from gdrpy.common.sizes import told_size
from gdrpy.errors import (
    BackendUnavailable,
    CudaError,
    InvalidHandle,
    NotFound,
    OutOfMemory,
    SizeMismatch,
)
from gdrpy.memory import fabric as fabrics
from gdrpy.memory import reclaim
from gdrpy.memory.descriptors import describe, private, private_duplicate
from gdrpy.memory.gpu import GpuMemory


@functools.cache
def _properties(device: int, fabric: bool = False) -> Any:
    """The properties of allocations on a device, with a fabric handle if ``fabric``; read-only."""
    driver = cuda.driver()
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device
    kinds = driver.CUmemAllocationHandleType
    properties.requestedHandleTypes = kinds.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    if fabric:
        properties.requestedHandleTypes = int(kinds.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) | int(
            kinds.CU_MEM_HANDLE_TYPE_FABRIC
        )
    if cuda.attribute(device, "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED"):
        properties.allocFlags.gpuDirectRDMACapable = 1
    return properties


@functools.cache
def granularity(device: Any = 0) -> int:
    """Every allocation's size is a multiple of this many bytes. Raises NotFound."""
    ordinal = cuda.ordinal("granularity", device)
    minimum = cuda.driver().CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    return int(cuda.call("cuMemGetAllocationGranularity", _properties(ordinal), minimum))


def rounded_size(nbytes: int, device: Any = 0) -> int:
    """The bytes that an allocation of ``nbytes`` takes: the next multiple of the granularity."""
    return rounded(as_size("rounded_size", nbytes), cuda.ordinal("rounded_size", device))


def rounded(nbytes: int, device: int) -> int:
    """The same for a size and a device that were checked."""
    unit = granularity(device)
    return -(-nbytes // unit) * unit


def create(
    nbytes: int,
    device: int = 0,
    *,
    gpu: bool = True,
    fabric: bool = False,
    backend: str | None = None,
) -> GpuMemory:
    """Allocate at least ``nbytes`` bytes; with ``gpu``, map them for the GPU, read and write.

    Without ``gpu`` no CUDA context is made; with ``fabric`` the memory has a fabric handle.
    ``backend`` maps it for the CPU, None chooses one. Raises OutOfMemory, NotFound, CudaError, and
    BackendUnavailable if fabric handles are not available.
    """
    size = rounded(nbytes, device)
    with Undo() as undo:
        handle = _create(undo, size, device, fabric)
        fd = undo.keep(private(export, handle))
        ptr = _map(undo, handle, size, (device,)) if gpu else None
        name = fabrics.export(handle) if fabric else None
        return GpuMemory(
            size,
            undo.pop_all(),
            fd=fd,
            ptr=ptr,
            device=device,
            home=device,
            fabric=name,
            backend=backend,
        )


def import_fabric(
    call: str, name: bytes, nbytes: int, device: int, readonly: bool = False
) -> GpuMemory:
    """Import the first ``nbytes`` bytes of a fabric handle's memory, for a device of this process.

    With ``readonly`` the GPU's page tables refuse writes.

    Raises BackendUnavailable, InvalidHandle, SizeMismatch, CudaError.
    """
    size = rounded(nbytes, device)
    reclaim.reclaim(device)
    with Undo() as undo:
        handle = fabrics.import_handle(undo, call, name, device)
        home = _home(handle)
        try:
            ptr = _map(undo, handle, size, _reaching(call, device, home), readonly)
        except CudaError as error:
            if error.call != "cuMemMap":
                raise
            raise SizeMismatch(
                f"{call}: the memory of this handle cannot be mapped as the {size} bytes that "
                f"{nbytes} take ({error.name}): pass the region's own nbytes"
            ) from error
        return GpuMemory(size, undo.pop_all(), ptr=ptr, device=device, home=home, fabric=name)


def create_export(size: int, device: int = 0) -> int:
    """A new descriptor, which the caller closes, of a new allocation of ``size`` bytes.

    Only the descriptor keeps the memory. No CUDA context is made. Raises OutOfMemory, NotFound,
    CudaError.
    """
    with Undo() as undo:
        return export(_create(undo, size, device))


def _create(undo: Undo, size: int, device: int, fabric: bool = False) -> Any:
    """The handle of a new allocation, released by ``undo``."""
    reclaim.reclaim(device)
    try:
        return cuda.made(
            undo, "cuMemCreate", size, _properties(device, fabric), 0, by="cuMemRelease"
        )
    except OutOfMemory as error:
        if reclaim.reclaim(device, wait=True):
            return _create(undo, size, device, fabric)
        total = cuda.call("cuDeviceTotalMem", cuda.device(device))
        remedy = "close regions, or allocate less"
        if size > total:
            remedy = f"it has {told_size(total)} in all: allocate less"
        raise OutOfMemory(
            f"cuMemCreate: GPU {device} has no {told_size(size)} left: {remedy}"
        ) from error
    except CudaError as error:
        if not fabric:
            raise
        raise fabrics.unavailable("cuMemCreate", device, error) from error


def import_fd(
    call: str, fd: int, size: int, viewer: int | None = None, readonly: bool = False
) -> GpuMemory:
    """Import an exported allocation of ``size`` bytes and map it for GPU ``viewer``.

    None is the GPU that it lies on. With ``readonly`` the GPU's page tables refuse writes. The
    caller keeps ``fd``. Raises InvalidHandle, NotFound, BackendUnavailable, CudaError.
    """
    with Undo() as undo:
        own = undo.keep(private_duplicate(fd))
        handle = _import_handle(undo, own.fileno())
        home = _home(handle)
        if home is None:
            raise NotFound(
                f"{call}: the memory lies on a GPU that this process does not see: add it to "
                f"CUDA_VISIBLE_DEVICES and to the container's GPUs, or open with gpu=False"
            )
        device = home if viewer is None else viewer
        reclaim.reclaim(home)
        ptr = _map(undo, handle, size, _reaching(call, device, home), readonly)
        return GpuMemory(size, undo.pop_all(), fd=own, ptr=ptr, device=device, home=home)


def export(handle: Any) -> int:
    """A new file descriptor of an allocation's handle, closed on exec."""
    kind = cuda.driver().CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    fd = int(cuda.call("cuMemExportToShareableHandle", handle, kind, 0))
    os.set_inheritable(fd, False)
    return fd


def _import_handle(undo: Undo, fd: int) -> Any:
    """The handle of an exported allocation, released by ``undo``. Raises InvalidHandle."""
    kind = cuda.driver().CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    try:
        return cuda.made(undo, "cuMemImportFromShareableHandle", fd, kind, by="cuMemRelease")
    except CudaError as error:
        raise InvalidHandle(
            f"file descriptor {fd} is {describe(fd)}, which CUDA does not import "
            f"({error.name}): pass one that Region.export() gave"
        ) from error


def _home(handle: Any) -> int | None:
    """The device that an allocation lies on; None if this process does not see it."""
    ordinal = int(cuda.call("cuMemGetAllocationPropertiesFromHandle", handle).location.id)
    return ordinal if ordinal >= 0 else None


def _reaching(call: str, device: int, home: int | None) -> tuple[int, ...]:
    """The devices to map memory for: the view's device, and the memory's.

    Libraries ask CUDA for the device of an address, and CUDA may name the memory's device. Raises
    NotFound, BackendUnavailable if the view's device cannot reach the memory's.
    """
    if home is None or device == home:
        return (device,)
    if not cuda.call("cuDeviceCanAccessPeer", cuda.device(device), cuda.device(home)):
        raise BackendUnavailable(
            f"{call}: GPU {device} cannot reach the memory of GPU {home}, where this memory lies "
            f"(cuDeviceCanAccessPeer says 0; nvidia-smi topo -p2p r shows the links): open it on "
            f"GPU {home}, or copy it"
        )
    return device, home


def _map(
    undo: Undo, handle: Any, size: int, devices: tuple[int, ...], readonly: bool = False
) -> int:
    """Map an allocation at a new GPU address, for devices to read, and write unless ``readonly``.

    The first device gets a primary context; the others need none.
    """
    cuda.primary_context(devices[0])
    address = cuda.made(
        undo, "cuMemAddressReserve", size, 0, 0, 0, by="cuMemAddressFree", also=(size,)
    )
    cuda.done(undo, "cuMemMap", address, size, 0, handle, 0, by="cuMemUnmap", also=(address, size))
    cuda.call("cuMemSetAccess", address, size, _accesses(devices, readonly), len(devices))
    return int(address)


@functools.cache
def _accesses(devices: tuple[int, ...], readonly: bool) -> list[Any]:
    """The devices' access rights to mapped memory. Cached: callers must not change the list."""
    driver = cuda.driver()
    rights = driver.CUmemAccess_flags
    accesses = []
    for device in devices:
        access = driver.CUmemAccessDesc()
        access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = device
        access.flags = (
            rights.CU_MEM_ACCESS_FLAGS_PROT_READ
            if readonly
            else rights.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        )
        accesses.append(access)
    return accesses
