"""GPU memory that is mapped by mmap of a descriptor, through the C core."""

from __future__ import annotations

from gdrpy._core import _ffi
from gdrpy._resource import Undo
from gdrpy.backends.memory import HeldMemory, status_error
from gdrpy.mappingtype import MappingType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ffi = _ffi.ffi
lib = _ffi.lib


class FdMemory(HeldMemory):
    """Memory behind a descriptor, which it owns: a dma-buf, a share of a pin, a part of a memfd.

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
    ) -> tuple[int, MappingType, Callable[[], object]]:
        view = map_fd(self._fd, 0, self._offset + offset, nbytes, readonly)
        return address_of(view), self._mapping_type, lambda: unmap(view)


def map_fd(fd: int, file_offset: int, offset: int, nbytes: int, readonly: bool) -> Any:
    """Map a byte range of a descriptor's memory, whose byte 0 is at ``file_offset``, a page's.

    Returns the ``struct gdr_map`` that :func:`unmap` takes.
    """
    view = ffi.new("struct gdr_map *")
    page = lib.gdr_map_pages(view, offset, nbytes)
    error = lib.gdr_map_fd(view, fd, file_offset + page, offset, readonly, ffi.NULL)
    if error:
        raise status_error(-error, f"mapping {nbytes} bytes at offset {offset}: mmap")
    return view


def address_of(view: Any) -> int:
    """Where the first byte of a ``struct gdr_map`` is."""
    return int(ffi.cast("uintptr_t", view.address))


def unmap(view: Any) -> None:
    """Undo :func:`map_fd`."""
    error = lib.gdr_map_undo(view)
    if error:
        raise status_error(-error, "munmap")
