"""Backend ``sim``: memory of the simulated GPU, whose allocations are memfds."""

from __future__ import annotations

import os

from gdrpy._fd import bar_block, describe, duplicate, is_simulated, simulated_device, target_of
from gdrpy._resource import Undo
from gdrpy.backends.base import Backend
from gdrpy.backends.memfd import Memfd
from gdrpy.errors import InvalidHandle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gdrpy.backends.memory import Memory
    from gdrpy.backends.records import PinRequest, Status


NAME = "sim"


def location(device: int) -> str:
    """On which GPU memory lies, in words."""
    return f"simulated GPU {device}"


class SimBackend(Backend):
    """Maps simulated GPU memory: ordinary cached memory."""

    name = NAME

    def _status(self, device: int | None) -> Status:
        from gdrpy import cuda
        from gdrpy.backends.records import Status

        del device
        if cuda.simulated():
            return Status(True, "the simulated GPU is in use")
        return Status(False, "a real GPU is in use", "set GDRPY_SIM=1 to use the simulated one")

    def from_export(self, fd: int) -> Memory:
        target = target_of(fd)
        if not is_simulated(target):
            raise InvalidHandle(
                f"file descriptor {fd} is {describe(fd)}, not an allocation of the simulated GPU: "
                f"pass one that Region.export() gave"
            )
        ordinal = simulated_device(target)
        if ordinal is not None:
            return Memfd.of_fd(fd, self.name, location(ordinal))
        device, size = bar_block(fd)
        with Undo() as undo:
            own = duplicate(fd)
            undo.callback(os.close, own)
            return self._part(undo, own, 0, size, device)

    def from_pointer(self, ptr: int, nbytes: int, device: int, request: PinRequest) -> Memory:
        from gdrpy._core import _ffi
        from gdrpy.backends import pointer

        del request
        found = pointer.allocation_range(ptr, nbytes)
        with Undo() as undo:
            fd = pointer.export_of(undo, ptr)
            offset = ptr - found.base
            if fd is None:
                info = _ffi.ffi.new("struct gdr_ipc_info *")
                handle = {"bytes": pointer.ipc_handle(ptr, device)}
                _ffi.lib.gdr_ipc_parse(_ffi.ffi.new("struct gdr_cuda_ipc *", handle), info)
                # In the simulated driver a block's name is its memfd in the owner, this process.
                fd = duplicate(info.object)
                undo.callback(os.close, fd)
                offset += info.block_offset
            return self._part(undo, fd, offset, nbytes, device)

    def _part(self, undo: Undo, fd: int, offset: int, nbytes: int, device: int) -> Memory:
        from gdrpy.backends.fdmemory import FdMemory
        from gdrpy.mappingtype import MappingType

        return FdMemory(
            undo.pop_all(),
            fd,
            offset,
            nbytes,
            mapping_type=MappingType.CACHED,
            backend=self.name,
            location=location(device),
        )
