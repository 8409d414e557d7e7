"""Backend ``sim``: memory of the simulated GPU, whose allocations are memfds."""

from __future__ import annotations

import fcntl
import os

from gdrpy import cuda
from gdrpy._core import _ffi
from gdrpy._fd import describe, duplicate, simulated_device
from gdrpy._resource import Undo
from gdrpy.backends import pointer
from gdrpy.backends.base import Backend, FdMemory, Memory, Status
from gdrpy.errors import InvalidHandle
from gdrpy.mapping import MappingType

#: A peer that could shrink the memory could kill its users by SIGBUS.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class SimBackend(Backend):
    """Maps simulated GPU memory: ordinary cached memory."""

    name = "sim"

    def _status(self, device: int | None) -> Status:
        del device
        if cuda.simulated():
            return Status(True, "the simulated GPU is in use")
        return Status(False, "a real GPU is in use", "set GDRPY_SIM=1 to use the simulated one")

    def from_export(self, fd: int) -> Memory:
        device = simulated_device(fd)
        if device is None:
            raise InvalidHandle(
                f"file descriptor {fd} is {describe(fd)}, not an allocation of the simulated GPU: "
                f"pass one that Region.export() gave"
            )
        sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS == _SEALS
        if not sealed or os.fstat(fd).st_size == 0:
            raise InvalidHandle(
                f"file descriptor {fd} bears the name of simulated GPU memory but is empty or can "
                f"be resized: it was not made by the simulated driver"
            )
        with Undo() as undo:
            own = duplicate(fd)
            undo.callback(os.close, own)
            return self._memory(undo, own, 0, os.fstat(own).st_size, device)

    def from_pointer(self, ptr: int, nbytes: int, device: int) -> Memory:
        found = pointer.allocation_range(ptr, nbytes)
        with Undo() as undo:
            fd = pointer.export_of(undo, ptr)
            offset = ptr - found.base
            if fd is None:
                info = _ffi.ffi.new("struct gdr_ipc_info *")
                _ffi.lib.gdr_ipc_parse(pointer.ipc_handle(ptr, device), info)
                # In the simulated driver a block's name is its memfd in the owner, this process.
                fd = duplicate(info.object)
                undo.callback(os.close, fd)
                offset += info.block_offset
            return self._memory(undo, fd, offset, nbytes, device)

    def _memory(self, undo: Undo, fd: int, offset: int, nbytes: int, device: int) -> Memory:
        return FdMemory(
            undo.pop_all(),
            fd,
            offset,
            nbytes,
            mapping_type=MappingType.CACHED,
            backend=self.name,
            location=f"simulated GPU {device}",
        )
