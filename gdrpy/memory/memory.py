"""Memory that this process holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NoReturn

from gdrpy._core._mapping import Descriptor
from gdrpy.common.resource import HOW_TO_SEND, Owner
from gdrpy.memory.descriptors import duplicate
from gdrpy.memory.view import Mapping

#: Called before close() refuses because memory is in use: each releases holds that have ended.
settle: list[Callable[[], None]] = []


class Memory(Owner, ABC):
    """``size`` bytes of memory: a MemoryFile or GpuMemory.

    It stays until it is closed and its last mapping has ended. ``location`` says where it lies, in
    words; ``backend`` names the way to a mapping of it. It keeps ``source`` alive.

    ``ptr`` is the address of the first byte for GPU ``device``, None without a GPU view. ``home``
    is the device that the memory lies on, None where this process does not know it. ``fabric`` is
    its handle for other nodes.
    """

    source: object = None
    ptr: int | None = None
    device: int | None = None
    home: int | None = None
    fabric: bytes | None = None
    _fd: Descriptor | None = None

    def __init__(self, size: int, backend: str | None, location: str) -> None:
        super().__init__(None)
        self.size = size
        self.backend = backend
        self.location = location

    @abstractmethod
    def map(self, offset: int, nbytes: int, readonly: bool) -> Mapping:
        """Map a byte range that lies inside, at any offset. Raises OutOfMemory (a full BAR)."""

    @property
    @abstractmethod
    def fd(self) -> int:
        """A descriptor by which other processes may map it, closed with it: duplicate it.

        Raises MissingView, BackendUnavailable where it has none.
        """

    def export(self) -> int:
        """A new descriptor by which other processes may open it. Raises as :attr:`fd`."""
        with self._lock:
            return duplicate(self.fd)

    @property
    def has_gpu_view(self) -> bool:
        """Whether it has a GPU address of its own, which is good as long as it is open."""
        return self.ptr is not None

    @property
    def devices(self) -> tuple[int, ...]:
        """Those that reach it at ``ptr``: the one that it lies on, and last the one of the view."""
        known = [one for one in (self.home, self.device) if one is not None]
        return tuple(dict.fromkeys(known))

    @property
    def revoked(self) -> bool:
        """Whether the GPU memory was freed under it."""
        return False

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a Region or Pin cannot be copied or pickled: {HOW_TO_SEND}")
