"""What a backend is: one way to get a CPU mapping of GPU memory."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod

from gdrpy.errors import Error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar

    from gdrpy.backends.memory import Memory
    from gdrpy.backends.records import PinRequest, Status


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
            from gdrpy.backends.records import Status

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
