"""Backend ``sim``: memory of the simulated GPU, whose allocations are memfds."""

from __future__ import annotations

import os

from gdrpy import cuda
from gdrpy._core import _ffi
from gdrpy._fd import describe, duplicate, is_simulated, simulated_block
from gdrpy._resource import Undo
from gdrpy.backends import pointer
from gdrpy.backends.base import Backend, FdMemory, Memory, PinRequest, Status
from gdrpy.errors import InvalidHandle
from gdrpy.mapping import MappingType


class SimBackend(Backend):
    """Maps simulated GPU memory: ordinary cached memory."""

    name = "sim"

    def _status(self, device: int | None) -> Status:
        del device
        if cuda.simulated():
            return Status(True, "the simulated GPU is in use")
        return Status(False, "a real GPU is in use", "set GDRPY_SIM=1 to use the simulated one")

    def from_export(self, fd: int) -> Memory:
        if not is_simulated(fd):
            raise InvalidHandle(
                f"file descriptor {fd} is {describe(fd)}, not an allocation of the simulated GPU: "
                f"pass one that Region.export() gave"
            )
        device, size = simulated_block(fd)
        with Undo() as undo:
            own = duplicate(fd)
            undo.callback(os.close, own)
            return self._memory(undo, own, 0, size, device)

    def from_pointer(self, ptr: int, nbytes: int, device: int, request: PinRequest) -> Memory:
        del request
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
