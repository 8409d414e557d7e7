"""Memory that is a sealed memory file: the host's, or a simulated GPU's without a GPU view."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Self

from gdrpy._core._mapping import Descriptor, Undo, take_memfd
from gdrpy._core.calls import call_failure
from gdrpy.errors import Error, InvalidHandle, OutOfMemory, PermissionDenied
from gdrpy.memory.descriptors import HOST_NAME, private
from gdrpy.memory.memory import Memory
from gdrpy.memory.view import Mapping

#: Where the host's memory lies; its backend's name, and that of simulated memory.
HOST_LOCATION = "host memory"
HOST, SIMULATED = "host", "sim"

_PAGE = os.sysconf("SC_PAGESIZE")
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def rounded_size(nbytes: int) -> int:
    """The bytes of host memory that ``nbytes`` take: whole pages."""
    return -(-nbytes // _PAGE) * _PAGE


def create_export(nbytes: int) -> int:
    """A new descriptor, closed on exec, of at least ``nbytes`` zeroed bytes: whole pages.

    Its size never changes. A process that holds no more than a descriptor opened for reading can
    write to it only as the same user, or root. Raises OutOfMemory.
    """
    size = rounded_size(nbytes)
    with Undo() as undo:
        fd = os.memfd_create(HOST_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        undo.callback(os.close, fd)
        os.fchmod(fd, 0o600)
        try:
            os.ftruncate(fd, size)
        except OSError as error:
            if error.errno not in (errno.EFBIG, errno.EINVAL, errno.ENOMEM, errno.ENOSPC):
                raise
            raise OutOfMemory(f"the host has no {size} bytes for a memory file") from error
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        undo.forget()
        return fd


def refused(fd: int, location: str) -> InvalidHandle:
    """That a descriptor with the name of a memory file is none that may be taken in."""
    return InvalidHandle(
        f"file descriptor {fd} bears the name of {location} but is empty, can be resized or is of "
        f"huge pages: pass one that Region.export() gave"
    )


def location_of(device: int | None) -> str:
    """Where a memory file of a simulated GPU lies, or of the host (None), in words."""
    return HOST_LOCATION if device is None else f"simulated GPU {device}"


class MemoryFile(Memory):
    """A sealed memory file, by its descriptor. It has no GPU view.

    ``device`` names the simulated GPU that it belongs to, None the host.
    """

    def __init__(self, fd: Descriptor, size: int, device: int | None) -> None:
        """``size`` is what sealed_size() says of ``fd``, which is its own from here on."""
        super().__init__(size, HOST if device is None else SIMULATED, location_of(device))
        self._fd: Descriptor = fd
        self.home = device

    @classmethod
    def create(cls, nbytes: int) -> Self:
        """New memory of the host's. Raises OutOfMemory."""
        return cls(private(create_export, nbytes), rounded_size(nbytes), None)

    @classmethod
    def of_fd(cls, fd: int, device: int | None) -> Self:
        """Take in a descriptor, which stays the caller's. Raises InvalidHandle."""
        taken = take_memfd(fd)
        if taken is None:
            raise refused(fd, location_of(device))
        return cls(*taken, device)

    @property
    def fd(self) -> int:
        self._check("using a memory file")
        return self._fd.fileno()

    def map(self, offset: int, nbytes: int, readonly: bool) -> Mapping:
        """As :meth:`Memory.map`. Raises PermissionDenied where it may only be read."""
        try:
            return Mapping._of_memfd(self.fd, offset, nbytes, readonly, self, self.backend)
        except OSError as error:
            raise self._mapping_error(error, nbytes, offset) from None

    def _mapping_error(self, error: OSError, nbytes: int, offset: int) -> Error:
        if error.errno in (errno.EACCES, errno.EPERM):
            return PermissionDenied(
                error.errno,
                f"the descriptor of {self.location} is open for reading only: open it with "
                f"gpu=False, readonly=True",
            )
        return call_failure(error.errno or 0, f"mapping {nbytes} bytes at offset {offset}: mmap")

    def _give_back(self) -> None:
        self._fd.close()
