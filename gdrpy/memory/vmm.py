"""CUDA's virtual memory management: allocations that other processes can import."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from gdrpy import cuda
from gdrpy._core._mapping import Descriptor, Undo, alone
from gdrpy._core.calls import ffi
from gdrpy.common.arguments import as_int, as_size
from gdrpy.common.sizes import told_size
from gdrpy.errors import (
    AddressInUse,
    BackendUnavailable,
    CudaError,
    InvalidHandle,
    NotFound,
    OutOfMemory,
    SizeMismatch,
)
from gdrpy.memory import fabric as fabrics
from gdrpy.memory import reclaim
from gdrpy.memory.backends import cuda_functions
from gdrpy.memory.descriptors import describe, fork_lock, private_duplicate
from gdrpy.memory.gpu import GpuMemory

#: What is wrong with memory of another GPU, and the remedy.
UNSEEN = (
    "the memory lies on {gpu} that this process does not see: add it to CUDA_VISIBLE_DEVICES and "
    "to the container's GPUs"
)

#: Each says in words what this process has in a range of GPU addresses, or None: asked for errors.
tenants: list[Callable[[int, int], str | None]] = []


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
    address: int | None = None,
) -> GpuMemory:
    """Allocate at least ``nbytes`` bytes; with ``gpu``, map them for the GPU, read and write.

    Without ``gpu`` no CUDA context is made; with ``fabric`` the memory has a fabric handle.
    ``backend`` maps it for the CPU, None chooses one. ``address`` is the GPU address, None is any.
    Raises OutOfMemory, NotFound, CudaError, AddressInUse, and BackendUnavailable if fabric handles
    are not available.
    """
    size = rounded(nbytes, device)
    with Undo() as undo:
        addresses, held = undo.keep(Undo()), undo.keep(Undo())
        handle = _create(held, size, device, fabric)
        fd = held.keep(_export_own(handle))
        ptr = None
        if gpu:
            ptr = reserve(addresses, "alloc", size, device, address)
            _map(held, ptr, handle, size, (device,))
        name = fabrics.export(handle) if fabric else None
        memory = GpuMemory(
            size,
            undo,
            held=held,
            fd=fd,
            ptr=ptr,
            device=device,
            home=device,
            fabric=name,
            backend=backend,
        )
        memory.created = True
        return memory


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
        addresses, held = undo.keep(Undo()), undo.keep(Undo())
        handle = fabrics.import_handle(held, call, name, device)
        home = _home(handle)
        reaching = _reaching(call, device, home)
        ptr = reserve(addresses, call, size, device)
        try:
            _map(held, ptr, handle, size, reaching, readonly)
        except CudaError as error:
            if error.call != "cuMemMap":
                raise
            raise SizeMismatch(
                f"{call}: the memory of this handle cannot be mapped as the {size} bytes that "
                f"{nbytes} take ({error.name}): pass the region's own nbytes"
            ) from error
        return GpuMemory(size, undo, held=held, ptr=ptr, device=device, home=home, fabric=name)


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
    call: str,
    fd: int,
    size: int,
    viewer: int | None = None,
    readonly: bool = False,
    address: int | None = None,
) -> GpuMemory:
    """Import an exported allocation of ``size`` bytes and map it for GPU ``viewer``.

    None is the GPU that it lies on. With ``readonly`` the GPU's page tables refuse writes. The
    caller keeps ``fd``. ``address`` is the GPU address, None is any. Raises InvalidHandle,
    NotFound, BackendUnavailable, AddressInUse, CudaError.
    """
    with Undo() as undo:
        addresses, held = undo.keep(Undo()), undo.keep(Undo())
        own, handle, home = _import(held, call, fd)
        device = home if viewer is None else viewer
        devices = _reaching(call, device, home)
        ptr = reserve(addresses, call, size, device, address)
        _map(held, ptr, handle, size, devices, readonly)
        memory = GpuMemory(size, undo, held=held, fd=own, ptr=ptr, device=device, home=home)
        memory.guarded = readonly
        return memory


def attach(call: str, memory: GpuMemory, fd: int, readonly: bool) -> None:
    """Map an exported allocation where ``memory`` was detached. Raises as :func:`import_fd`."""
    assert memory.ptr is not None
    assert memory.device is not None
    with Undo() as undo:
        own, handle, home = _import(undo, call, fd)
        if home != memory.home:
            raise InvalidHandle(
                f"{call}: the memory lies on {cuda.location(home)}, and the region's lay on "
                f"{memory.location}: attach memory of the same GPU"
            )
        devices = _reaching(call, memory.device, home)
        _map(undo, memory.ptr, handle, memory.size, devices, readonly)
        memory.attach(own, undo.pop_all())
        memory.guarded = readonly


def protect(memory: GpuMemory) -> None:
    """Have the GPU's page tables refuse writes from now on, at the same addresses."""
    devices = memory.devices
    accesses = _accesses(devices, True)
    cuda.call("cuMemSetAccess", memory.ptr, memory.size, accesses, len(devices))
    memory.guarded = True


def _import(undo: Undo, call: str, fd: int) -> tuple[Descriptor, Any, int]:
    """An exported allocation's own descriptor, handle and device, released by ``undo``."""
    own = undo.keep(private_duplicate(fd))
    handle = _import_handle(undo, own.fileno())
    home = _home(handle)
    if home is None:
        raise NotFound(f"{call}: {UNSEEN.format(gpu='a GPU')}, or open with gpu=False")
    reclaim.reclaim(home)
    return own, handle, home


def export(handle: Any) -> int:
    """A new file descriptor of an allocation's handle, closed on exec."""
    kind = cuda.driver().CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    fd = int(cuda.call("cuMemExportToShareableHandle", handle, kind, 0))
    os.set_inheritable(fd, False)
    return fd


def _export_own(handle: Any) -> Descriptor:
    """The same as :func:`export`, owned. Forked children close their copy of it."""
    name = "cuMemExportToShareableHandle"
    function = int(ffi.cast("uintptr_t", getattr(cuda_functions(), name)))
    made = alone(fork_lock, Descriptor.exported, function, int(handle))
    if not isinstance(made, Descriptor):
        cuda.check(name, made)
    assert isinstance(made, Descriptor)
    return made


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


def as_address(call: str, address: Any, gpu: bool) -> int | None:
    """A GPU address that CUDA may be asked for; None is any. Raises TypeError, ValueError."""
    if address is None:
        return None
    value = as_int(call, "address", address)
    if not gpu:
        raise ValueError(
            f"{call}: address={value:#x} places the GPU view, which gpu=False leaves out"
        )
    unit = granularity()
    if not 0 < value < 1 << 64 or value % unit:
        raise ValueError(
            f"{call}: address {value:#x} is not a GPU address that memory can be mapped at: it "
            f"must be a multiple of {unit:#x}, below 2**64 and not 0"
        )
    return value


def reserve(undo: Undo, call: str, size: int, device: int, wish: int | None = None) -> int:
    """Reserve GPU addresses, freed by ``undo``; from ``wish`` on, or it raises AddressInUse.

    The device gets a primary context.
    """
    cuda.primary_context(device)
    if wish is None:
        return _reserved(undo, size, 0)
    while True:
        answer = "CUDA takes no memory there"
        with Undo() as trial:
            try:
                found = _reserved(trial, size, wish)
                if found == wish:
                    undo.keep(trial.pop_all())
                    return found
                answer = f"CUDA offers {found:#x} instead"
            except (CudaError, OutOfMemory) as error:
                answer += f" ({error})"
        # Dropped memory of any GPU may have the address.
        if not sum(reclaim.reclaim(device, wait=True) for device in range(cuda.device_count())):
            raise AddressInUse(
                f"{call}: the {told_size(size)} at GPU address {wish:#x} are not free: "
                f"{_tenant(wish, size)}; {answer}: choose another address, or free this one first"
            )


def _reserved(undo: Undo, size: int, wish: int) -> int:
    """CUDA takes the wish as a hint."""
    return int(
        cuda.made(
            undo, "cuMemAddressReserve", size, 0, wish, 0, by="cuMemAddressFree", also=(size,)
        )
    )


def _tenant(address: int, size: int) -> str:
    """Describe what is in a range of GPU addresses."""
    for ask in tenants:
        found = ask(address, size)
        if found is not None:
            return found
    kinds = cuda.driver().CUpointer_attribute
    attributes = [
        kinds.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        kinds.CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    ]
    for place in (address, address + size - 1):
        try:
            start, length = map(
                int, cuda.call("cuPointerGetAttributes", len(attributes), attributes, place)
            )
        except CudaError:
            continue
        if length:
            return f"memory or a reservation outside of gdrpy has {start:#x} to {start + length:#x}"
    return (
        "CUDA knows no memory there, so another library or the CPU may have reserved them, or they "
        "lie outside of what CUDA gives out (it has fewer addresses for small regions than for "
        "large ones)"
    )


def terms(device: int) -> tuple[int, int]:
    """Where C code finds an allocation's CUmemAllocationProp and a mapping's CUmemAccessDesc."""
    return _properties(device).getPtr(), _accesses((device,), False)[0].getPtr()


def _map(
    undo: Undo,
    address: int,
    handle: Any,
    size: int,
    devices: tuple[int, ...],
    readonly: bool = False,
) -> None:
    """Map an allocation at reserved addresses, to read, and to write unless ``readonly``.

    The first device has a primary context; the others need none.
    """
    cuda.done(undo, "cuMemMap", address, size, 0, handle, 0, by="cuMemUnmap", also=(address, size))
    cuda.call("cuMemSetAccess", address, size, _accesses(devices, readonly), len(devices))


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
