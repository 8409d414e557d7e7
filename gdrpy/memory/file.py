"""Sealed memory files: host memory, or a simulated GPU's memory without a GPU view."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Self

from gdrpy._core._mapping import Descriptor, Undo, duplicate_memfd
from gdrpy._core.calls import call_failure
from gdrpy.common.sizes import told_size
from gdrpy.errors import Error, InvalidHandle, OutOfMemory, PermissionDenied
from gdrpy.memory.descriptors import HOST_NAME, private
from gdrpy.memory.memory import Memory
from gdrpy.memory.view import Mapping

#: The location of host memory; the names of its backend and of the simulated GPU's.
HOST_LOCATION = "host memory"
HOST, SIMULATED = "host", "sim"

_PAGE = os.sysconf("SC_PAGESIZE")
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def rounded_size(nbytes: int) -> int:
    """``nbytes`` rounded up to whole pages."""
    return -(-nbytes // _PAGE) * _PAGE


def create_export(nbytes: int) -> int:
    """A new descriptor, closed on exec, of ``nbytes`` zeroed bytes, rounded up to whole pages.

    Its size is sealed. A process with a descriptor opened for reading can write to the memory only
    as the same user or root. Raises OutOfMemory.
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
            raise OutOfMemory(f"the host has no {told_size(size)} for a memory file") from error
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        undo.forget()
        return fd


def refused(fd: int, location: str) -> InvalidHandle:
    """The error for a descriptor with a memory file's name that gdrpy does not accept."""
    return InvalidHandle(
        f"file descriptor {fd} has the name of {location} but is empty, can be resized or has "
        f"huge pages: pass one that Region.export() gave"
    )


def location_of(device: int | None) -> str:
    """The location of a memory file of a simulated GPU, or of the host (None), in words."""
    return HOST_LOCATION if device is None else f"simulated GPU {device}"


class MemoryFile(Memory):
    """A sealed memory file, by its descriptor. It has no GPU view.

    ``device`` is the simulated GPU that it belongs to, None for the host.
    """

    def __init__(self, fd: Descriptor, size: int, device: int | None) -> None:
        """Take ``fd`` over; ``size`` is fixed_size() of it."""
        super().__init__(size, HOST if device is None else SIMULATED, location_of(device))
        self._fd: Descriptor = fd
        self.home = device

    @classmethod
    def create(cls, nbytes: int) -> Self:
        """New host memory. Raises OutOfMemory."""
        return cls(private(create_export, nbytes), rounded_size(nbytes), None)

    @classmethod
    def of_fd(cls, fd: int, device: int | None) -> Self:
        """Memory by a duplicate of a descriptor. Raises InvalidHandle."""
        taken = duplicate_memfd(fd)
        if taken is None:
            raise refused(fd, location_of(device))
        return cls(*taken, device)

    @property
    def fd(self) -> int:
        self._check("using a memory file")
        return self._fd.fileno()

    def map(self, offset: int, nbytes: int, readonly: bool) -> Mapping:
        """As :meth:`Memory.map`. Raises PermissionDenied if the descriptor is read-only."""
        try:
            fd = self._fd.fileno()
            return Mapping._of_memfd(fd, offset, nbytes, readonly, self, self.backend)
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
        if self._fd is not None:  # it is until __init__ has set it, which Ctrl-C may end
            self._fd.close()

    def _drop(self) -> None:
        self._give_back()
        self.source = None
