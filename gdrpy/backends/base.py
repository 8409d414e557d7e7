"""What a backend is: one way to get a CPU mapping of GPU memory."""

from __future__ import annotations

import errno
import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from gdrpy._core import _ffi
from gdrpy._resource import Owner, Undo
from gdrpy.errors import (
    BackendUnavailable,
    DriverError,
    Error,
    OutOfMemory,
    PermissionDenied,
)
from gdrpy.mapping import Mapping, MappingType

if TYPE_CHECKING:
    from gdrpy.backends.node import Node

ffi = _ffi.ffi
lib = _ffi.lib


@dataclass(frozen=True)
class Status:
    """Whether a backend can serve here; if not, why, and what would change it."""

    usable: bool
    reason: str
    remedy: str = ""


@dataclass(frozen=True)
class PinRequest:
    """How a pin is to end if its GPU memory is freed first.

    ``revocable``: it loses the memory, else it keeps it. An access then finds zeros, or with
    ``sigbus`` is a SIGBUS. ``node`` opens the node whose events tell.
    """

    revocable: bool
    sigbus: bool
    node: Callable[[], Node]


class Memory(Owner, ABC):
    """GPU memory that a backend has taken into this process.

    ``nbytes`` can be mapped; ``location`` says on which GPU, in words. It stays until it is closed
    and its last mapping is gone, and keeps ``source`` alive.
    """

    source: object = None
    #: Whether it keeps the GPU memory even when its owner frees it.
    persistent: bool = True
    #: The kernel module's name for the pin, in the events of its node; None for other memory.
    handle: int | None = None

    def __init__(self, undo: Undo, nbytes: int, backend: str, location: str) -> None:
        super().__init__(undo)
        self.nbytes = nbytes
        self.backend = backend
        self.location = location

    def map(
        self, offset: int, nbytes: int, readonly: bool, ptr: int | None, device: int | None
    ) -> Mapping:
        """Map a byte range that lies inside, at any offset. Raises OutOfMemory (a full BAR).

        ``ptr`` and ``device`` are the GPU address of the range and its device, where known.
        """
        self.hold()
        try:
            view, mapping_type, unmap = self._map(offset, nbytes, readonly)
        except BaseException:
            self.let_go()
            raise

        def release() -> None:
            try:
                unmap()
            finally:
                self.let_go()

        address = int(ffi.cast("uintptr_t", view.address))
        return Mapping(address, nbytes, mapping_type, readonly, release, self.backend, ptr, device)

    @property
    def revoked(self) -> bool:
        """Whether the GPU memory was freed under it."""
        return False

    def export(self, readonly: bool) -> int:
        """A new descriptor by which other processes may map it. Raises BackendUnavailable."""
        del readonly
        raise BackendUnavailable(
            f"Pin.export: {self.backend} cannot share a pin of its own: load gdrpy's kernel module "
            f"(sudo ./insmod.sh), or share memory of gdrpy.alloc() by Region.export()"
        )

    @abstractmethod
    def _map(
        self, offset: int, nbytes: int, readonly: bool
    ) -> tuple[Any, MappingType, Callable[[], object]]:
        """What map() does in the backend's way: a ``struct gdr_map``, its type, what unmaps it."""


class FdMemory(Memory):
    """Memory that is mapped by mmap of a descriptor, which it owns: a memfd or a dma-buf.

    Byte 0 of the memory is at ``offset`` of the descriptor.
    """

    def __init__(
        self,
        undo: Undo,
        fd: int,
        offset: int,
        nbytes: int,
        *,
        mapping_type: MappingType,
        backend: str,
        location: str,
    ) -> None:
        super().__init__(undo, nbytes, backend, location)
        self._fd = fd
        self._offset = offset
        self._mapping_type = mapping_type

    def _map(
        self, offset: int, nbytes: int, readonly: bool
    ) -> tuple[Any, MappingType, Callable[[], object]]:
        view = map_fd(self._fd, 0, self._offset + offset, nbytes, readonly)
        return view, self._mapping_type, functools.partial(unmap, view)


def map_fd(fd: int, file_offset: int, offset: int, nbytes: int, readonly: bool) -> Any:
    """Map a byte range of a descriptor's memory, whose byte 0 is at ``file_offset``, a page's."""
    view = ffi.new("struct gdr_map *")
    page = lib.gdr_map_pages(view, offset, nbytes)
    error = lib.gdr_map_fd(view, fd, file_offset + page, offset, readonly)
    if error:
        raise status_error(-error, f"mapping {nbytes} bytes at offset {offset}: mmap")
    return view


def unmap(view: Any) -> None:
    """Undo :func:`map_fd`."""
    error = lib.gdr_map_undo(view)
    if error:
        raise status_error(-error, "munmap")


class Backend(ABC):
    """One way to CPU-map GPU memory. Stateless but for what it caches for the process."""

    name: ClassVar[str]
    #: Bytes that a pin is rounded out to.
    page_size: ClassVar[int] = os.sysconf("SC_PAGESIZE")
    #: Whether a descriptor alone is enough, without CUDA.
    takes_exports: ClassVar[bool] = True
    #: Whether pins can be made to end when their memory is freed.
    revocable_pins: ClassVar[bool] = False

    def status(self, device: int | None = None) -> Status:
        """Whether it can serve here (on this device). Never raises, and makes no CUDA context."""
        try:
            return self._status(device)
        except (Error, ValueError) as error:
            return Status(False, str(error))

    @abstractmethod
    def _status(self, device: int | None) -> Status:
        """As :meth:`status`, but may raise what CUDA answers."""

    @abstractmethod
    def from_export(self, fd: int) -> Memory:
        """Take in an exported allocation; ``fd`` stays the caller's. Raises InvalidHandle."""

    def from_allocation(self, fd: int, ptr: int | None, size: int, device: int) -> Memory:
        """Take in a VMM allocation of this process, by its descriptor or its GPU address."""
        del ptr, size, device
        return self.from_export(fd)

    @abstractmethod
    def from_pointer(self, ptr: int, nbytes: int, device: int, request: PinRequest) -> Memory:
        """Take in the range at a device pointer. Byte 0 of the memory is at ``ptr``.

        The request is never for a revocable pin where the backend has none.
        """


def status_error(number: int, message: str, status: int = 0) -> Error:
    """The exception for an errno that a backend's call gave: the one place that chooses it."""
    if number in (errno.ENOMEM, errno.ENOSPC):
        return OutOfMemory(
            f"{message}: no room left in the GPU's memory, its BAR1 or the address space: close "
            f"mappings, or map less"
        )
    if number in (errno.EACCES, errno.EPERM):
        return PermissionDenied(
            number, f"{message}: {os.strerror(number)}; ask for access to the /dev/nvidia* nodes"
        )
    detail = f"{os.strerror(number)}" + (f" (driver status {status:#x})" if status else "")
    return DriverError(number, f"{message}: {detail}", status)
