"""Opening memory by a descriptor: its kind decides how."""

from __future__ import annotations

import os
from errno import EACCES
from typing import Any

from gdrpy._core._mapping import Descriptor, Undo, fixed_size
from gdrpy._core.calls import text
from gdrpy.errors import (
    InvalidHandle,
    MissingView,
    NotFound,
    PermissionDenied,
    SizeMismatch,
)
from gdrpy.memory import vmm
from gdrpy.memory.backends import forced
from gdrpy.memory.descriptors import (
    NVIDIA_NODE,
    bar_block,
    describe,
    is_host,
    is_simulated,
    is_writable,
    share_size,
    simulated_device,
    target_of,
)
from gdrpy.memory.file import MemoryFile, location_of, refused
from gdrpy.memory.gpu import GpuMemory, keep_fd, take_export
from gdrpy.memory.memory import Memory


def open_export(
    call: str,
    fd: int,
    nbytes: int | None = None,
    *,
    gpu: bool,
    readonly: bool = False,
    backend: str | None = None,
    viewer: int | None = None,
    address: int | None = None,
    unseen: bool = False,
) -> Memory:
    """Open the memory behind a descriptor, which the caller keeps; it has at least ``nbytes``.

    ``gpu`` gives it a GPU view, ``readonly`` or not, on GPU ``viewer``; None is the GPU that the
    memory lies on. Without a GPU view CUDA is not needed. Host memory has no GPU view and ignores
    ``backend``. ``address`` is that of the GPU view, None is any. ``unseen`` memory, of a GPU that
    this process does not see, gets no GPU view; else it raises NotFound.

    Raises InvalidHandle, SizeMismatch, PermissionDenied, OutOfMemory, CudaError, NotFound,
    BackendUnavailable, ValueError, AddressInUse, MissingView (host memory at a GPU address).
    """
    name = forced(backend)
    target, device = _examine(call, fd, name)
    if is_host(target) or (device is not None and not gpu):
        if address is not None:
            raise MissingView(
                f"{call}: host memory has no GPU view to place at {address:#x}: leave address out"
            )
        file = MemoryFile.of_fd(fd, device)
        if nbytes is not None and nbytes > file.size:
            file.close()
            raise _too_large(call, nbytes, file.size)
        return file
    with Undo() as undo:
        core = _take(undo, call, fd, target, device, name)
        if nbytes is not None and nbytes > core.nbytes:
            raise _too_large(call, nbytes, core.nbytes)
        if gpu:
            _check_importable(call, fd, device)
        try:
            memory = (
                vmm.import_fd(call, fd, core.nbytes, viewer, readonly, address)
                if gpu
                else keep_fd(fd, core.nbytes)
            )
        except NotFound:
            if not unseen or viewer is not None or address is not None:
                raise
            memory = keep_fd(fd, core.nbytes)
            memory.unseen = vmm.UNSEEN.format(gpu="a GPU")
        memory.keep_core(core, undo.pop_all())
        return memory


def attach_export(
    call: str, memory: GpuMemory, fd: int, readonly: bool, size: int | None = None
) -> None:
    """Map the memory behind a descriptor, which the caller keeps, where ``memory`` was detached.

    ``size`` is the allocation's as a broker reports it. The core then takes the memory in when it
    is first used, which saves half of the time. Raises as :func:`open_export`; SizeMismatch and
    InvalidHandle for memory of another size or GPU.
    """
    backend = memory.backend or memory._forced
    name = forced(backend)
    target, device = _examine(call, fd, name)
    if is_host(target):
        raise InvalidHandle(f"{call}: file descriptor {fd} is host memory, which no GPU sees")
    with Undo() as undo:
        core = _take(undo, call, fd, target, device, name) if size is None else None
        found = size if core is None else core.nbytes
        if found != memory.size:
            raise SizeMismatch(
                f"{call}: the memory has {found} bytes, and the addresses are for "
                f"{memory.size}: attach memory of the same size"
            )
        _check_importable(call, fd, device)
        vmm.attach(call, memory, fd, readonly)
        if core is not None and backend in (None, text(core.backend.name)):
            memory.keep_core(core, undo.pop_all())


def own_export(
    call: str,
    descriptor: Descriptor,
    nbytes: int,
    device: int | None,
    *,
    gpu: bool,
    readonly: bool = False,
    viewer: int | None = None,
    address: int | None = None,
    unseen: bool = False,
) -> Memory:
    """Like :func:`open_export`, but the memory takes the descriptor over.

    ``device`` is where the memory lies as a broker reports it, None for the host; the descriptor's
    name is not checked. The descriptor is closed if this raises.
    """
    fd = descriptor.fileno()
    if address is None and (device is None or not gpu):
        size = fixed_size(fd)
        if nbytes <= size and (device is None or not _is_for_nvrm(fd)):
            return MemoryFile(descriptor, size, device)
    try:
        return open_export(
            call,
            fd,
            nbytes,
            gpu=gpu,
            readonly=readonly,
            viewer=viewer,
            address=address,
            unseen=unseen,
        )
    finally:
        descriptor.close()


def _examine(call: str, fd: int, backend: str | None) -> tuple[str, int | None]:
    """The target of a descriptor, and the simulated GPU that it belongs to, if any."""
    target = target_of(fd) if 0 <= fd < 1 << 31 else ""
    if not target:
        raise InvalidHandle(
            f"{call}: file descriptor {fd} is not open: pass one that Region.export() gave"
        )
    return target, None if backend == "nvrm" else simulated_device(target)


def _check_importable(call: str, fd: int, device: int | None) -> None:
    if device is not None and not is_writable(fd):
        raise PermissionDenied(
            EACCES,
            f"{call}: file descriptor {fd} is open for reading only, and CUDA does not import "
            f"it: open it with gpu=False, readonly=True",
        )


def _is_for_nvrm(fd: int) -> bool:
    """Whether simulated memory, a file, is to be taken in as a real GPU's: it must be writable."""
    return os.environ.get("GDRPY_BACKEND") == "nvrm" and is_writable(fd)


def _too_large(call: str, wanted: int, size: int) -> SizeMismatch:
    return SizeMismatch(f"{call}: {wanted} bytes were asked for, and the allocation has {size}")


def _take(
    undo: Undo, call: str, fd: int, target: str, device: int | None, forced: str | None
) -> Any:
    """Have the C core take a descriptor's memory in; ``undo`` releases it. Raises InvalidHandle.

    ``device`` is the simulated GPU whose memory file it is.
    """
    if forced != "nvrm":
        if device is not None:
            size = fixed_size(fd)
            if not size:
                raise refused(fd, location_of(device))
            return take_export(undo, "sim", fd, size, device)
        if is_simulated(target):
            ordinal, size = bar_block(fd)
            return take_export(undo, "sim", fd, size, ordinal)
        if forced == "sim":
            raise InvalidHandle(
                f"{call}: file descriptor {fd} is {describe(fd)}, not an allocation of the "
                f"simulated GPU: pass one that Region.export() gave"
            )
        if target != NVIDIA_NODE:
            if share_size(fd) is not None:
                return take_export(undo, "gdrdrv", fd)
            raise InvalidHandle(
                f"{call}: file descriptor {fd} is {describe(fd)}, not an exported GPU allocation: "
                f"pass one that Region.export() or Pin.export() gave"
            )
    try:
        return take_export(undo, "nvrm", fd)
    except InvalidHandle as error:
        raise InvalidHandle(
            f"file descriptor {fd} is {describe(fd)}, which the NVIDIA driver does not take for "
            f"an exported allocation ({error}): pass one that Region.export() gave"
        ) from error
