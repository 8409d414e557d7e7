"""Memory that this process holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from gdrpy._core._mapping import Descriptor
from gdrpy.common.resource import HOW_TO_SEND, Owner
from gdrpy.errors import BackendUnavailable, Detached, Gone
from gdrpy.memory.descriptors import duplicate
from gdrpy.memory.view import Mapping

#: What is wrong with a detached region, and the remedy.
DETACHED = "the region is detached, and only its GPU addresses are kept"
ATTACH = "attach() it first"

#: What :func:`settle_all` calls: each releases holds that have ended.
settle: list[Callable[[], None]] = []


def settle_all() -> None:
    """Release holds that have ended, before a check whether memory is in use.

    This takes the locks of any memory, so the caller has none: another thread may close the other.
    """
    for one in settle:
        one()


class Memory(Owner, ABC):
    """``size`` bytes of memory: a MemoryFile or GpuMemory.

    It stays until it is closed and its last mapping has ended. ``location`` says in words where it
    lies; ``backend`` is the name of the backend that maps it. It keeps ``source`` alive.

    ``ptr`` is the address of the first byte for GPU ``device``, None without a GPU view. ``home``
    is the device that the memory lies on, None if this process does not know it. ``fabric`` is
    its handle for other nodes.
    """

    source: object = None
    ptr: int | None = None
    device: int | None = None
    home: int | None = None
    fabric: bytes | None = None
    #: Whether only the GPU addresses are kept.
    detached = False
    #: Why it has no GPU view though one was asked for, in words.
    unseen: str | None = None
    #: Why it will not come back, in words.
    lost: str | None = None
    #: How many tensors of it this process has sent and keeps for other processes.
    sent = 0
    #: Whether alloc() made it, and not another owner.
    created = False
    _fd: Descriptor | None = None

    def __init__(self, size: int, backend: str | None, location: str) -> None:
        super().__init__()
        self.size = size
        self.backend = backend
        self.location = location

    @abstractmethod
    def map(self, offset: int, nbytes: int, readonly: bool) -> Mapping:
        """Map a byte range inside the memory, at any offset. Raises OutOfMemory (a full BAR)."""

    @property
    @abstractmethod
    def fd(self) -> int:
        """A descriptor by which other processes may map the memory. It closes with the memory.

        Raises MissingView, BackendUnavailable if the memory has none.
        """

    def export(self) -> int:
        """A new descriptor by which other processes may open it. Raises as :attr:`fd`."""
        with self._lock:
            return duplicate(self.fd)

    @contextmanager
    def leaving_source(self) -> Iterator[None]:
        """A block in which a detach leaves ``source`` open: the caller has it from then on.

        If the block raises, the memory keeps its source.
        """
        source, self.source = self.source, None
        try:
            yield
        except BaseException:
            self.source = source
            raise

    def engine(self, call: str) -> object:
        """The memory for the copy engine without CUDA: a capsule for the C core.

        Raises BackendUnavailable, with the reason, if the engine cannot be used.
        """
        raise BackendUnavailable(
            f"{call}: the copy engine cannot be used: it copies memory of an NVIDIA GPU, and this "
            f"is {self.location}"
        )

    @property
    def has_gpu_view(self) -> bool:
        """Whether it has a GPU address that is valid as long as it is open."""
        return self.ptr is not None

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices that reach it at ``ptr``: its home, and last the device of the GPU view."""
        if self.device is None:
            return () if self.home is None else (self.home,)
        return (self.device,) if self.home in (None, self.device) else (self.home, self.device)

    def _check(self, call: str, /) -> None:
        super()._check(call)
        if self.lost is not None:
            raise Gone(f"{call}: {self.lost}")
        if self.detached:
            raise Detached(f"{call}: {DETACHED}: {ATTACH}")

    @property
    def busy(self) -> int:
        """The number of users that need the memory itself, not only its GPU addresses."""
        return self.users

    @property
    def revoked(self) -> bool:
        """Whether the owner of the GPU memory freed it."""
        return False

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a Region or Pin cannot be copied or pickled: {HOW_TO_SEND}")
