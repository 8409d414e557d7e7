"""Memory that has been taken into this process, to be mapped for the CPU."""

from __future__ import annotations

from abc import ABC, abstractmethod

from gdrpy.common.resource import Owner, Undo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gdrpy.common.resource import Closable
    from gdrpy.memory.view import Mapping


class Memory(Owner, ABC):
    """Memory that a backend has taken into this process.

    ``nbytes`` can be mapped; ``location`` says on which GPU, in words. It and its mappings keep
    ``source`` alive.
    """

    source: object = None

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

    def close_with(self, allocation: Closable) -> None:
        """Close it, and then the allocation that it is of."""
        with Undo() as undo:
            undo.keep(allocation)
            undo.keep(self)

    @property
    def revoked(self) -> bool:
        """Whether the GPU memory was freed under it."""
        return False
