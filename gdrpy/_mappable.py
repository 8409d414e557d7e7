"""What regions and pins have in common: memory that is mapped for the CPU, any number of times."""

from __future__ import annotations

import weakref

from gdrpy._resource import Resource, Undo
from gdrpy.backends import Memory
from gdrpy.errors import MissingView
from gdrpy.mapping import Mapping


class Mappable(Resource):
    """``nbytes`` bytes of GPU memory that a backend may have taken in, and the mappings of them."""

    def __init__(
        self, memory: Memory | None, nbytes: int, ptr: int | None, device: int | None
    ) -> None:
        super().__init__()
        self.nbytes = nbytes
        self.device = device
        self._memory = memory
        self._ptr = ptr
        self._mappings: weakref.WeakSet[Mapping] = weakref.WeakSet()

    def map(self, offset: int = 0, nbytes: int | None = None, *, readonly: bool = False) -> Mapping:
        """Map ``nbytes`` bytes (None: all the rest) from any byte ``offset`` on for the CPU.

        Raises ValueError outside the memory, OutOfMemory when the BAR is full.
        """
        name = type(self).__name__
        self._check(f"{name}.map")
        if self._memory is None:
            raise MissingView("this region was opened without a CPU view: open it with cpu=True")
        if nbytes is None:
            nbytes = self.nbytes - offset
        check_range(f"{name}.map", offset, nbytes, self.nbytes)
        if nbytes == 0:
            raise ValueError(f"{name}.map: a mapping of 0 bytes at offset {offset}")
        mapping = self._memory.map(offset, nbytes, readonly=readonly)
        mapping.device = self.device
        mapping.ptr = None if self._ptr is None else self._ptr + offset
        self._mappings.add(mapping)
        return mapping

    def _release(self) -> None:
        busy = sum(mapping._users for mapping in self._mappings)
        if busy:
            raise BufferError(
                f"{type(self).__name__}.close: {busy} views or running copies still use the "
                f"memory; delete the numpy arrays and memoryviews made from it first"
            )
        with Undo() as undo:
            self._give_back(undo)

    def _give_back(self, undo: Undo) -> None:
        """Put on ``undo`` what closes the parts: the last one put there is closed first."""
        if self._memory is not None:
            undo.callback(self._memory.close)
        for mapping in self._mappings:
            undo.callback(mapping.close)


def check_range(call: str, offset: int, nbytes: int, room: int) -> None:
    """Raise ValueError unless [offset, offset + nbytes) lies in ``room`` bytes."""
    if offset < 0 or nbytes < 0 or offset + nbytes > room:
        raise ValueError(
            f"{call}: offset {offset} + {nbytes} bytes lies outside the {room} bytes there are"
        )
