"""GPU memory that a backend has taken into this process, to be mapped for the CPU."""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod

from gdrpy._resource import Owner, Undo
from gdrpy.errors import (
    BackendUnavailable,
    DriverError,
    Error,
    OutOfMemory,
    PermissionDenied,
)
from gdrpy.mapping import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gdrpy.mappingtype import MappingType


class Memory(Owner, ABC):
    """GPU memory that a backend has taken into this process.

    ``nbytes`` can be mapped; ``location`` says on which GPU, in words. It and its mappings keep
    ``source`` alive.
    """

    source: object = None
    #: Whether it keeps the GPU memory even when its owner frees it.
    persistent: bool = True
    #: The kernel module's name for the pin, in the events of its node; None for other memory.
    handle: int | None = None

    def __init__(self, undo: Undo | None, nbytes: int, backend: str, location: str) -> None:
        super().__init__(undo)
        self.nbytes = nbytes
        self.backend = backend
        self.location = location

    @abstractmethod
    def map(
        self, offset: int, nbytes: int, readonly: bool, ptr: int | None, device: int | None
    ) -> Mapping:
        """Map a byte range that lies inside, at any offset. Raises OutOfMemory (a full BAR).

        ``ptr`` and ``device`` are the GPU address of the range and its device, where known.
        """

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


class HeldMemory(Memory):
    """Memory that stays, also when it is closed, until its last mapping is gone."""

    def map(
        self, offset: int, nbytes: int, readonly: bool, ptr: int | None, device: int | None
    ) -> Mapping:
        self.hold()
        try:
            address, mapping_type, unmap = self._map(offset, nbytes, readonly)
        except BaseException:
            self.let_go()
            raise

        def release() -> None:
            try:
                unmap()
            finally:
                self.let_go()

        return Mapping(address, nbytes, mapping_type, readonly, release, self.backend, ptr, device)

    @abstractmethod
    def _map(
        self, offset: int, nbytes: int, readonly: bool
    ) -> tuple[int, MappingType, Callable[[], object]]:
        """What map() does in the backend's way: the address, its type, what unmaps it."""


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
