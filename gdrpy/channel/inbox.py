"""An inbox: fixed-size records from any threads of kernels to a reader on the CPU."""

from __future__ import annotations

import time
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from gdrpy._core import _mapping
from gdrpy.channel.named import Layout
from gdrpy.channel.ring import End, Ring, as_capacity, as_record_size, nap, only
from gdrpy.errors import Timeout

if TYPE_CHECKING:
    from gdrpy.broker.client.broker import Broker

#: In records: a slot must not see the same 32-bit stamp twice in turn.
CAPACITY_MAX = 1 << 31
#: How many records a task takes at most until other tasks run.
_TURN = 64


class Inbox(Ring, _mapping.Inbox):
    """A ring of ``capacity`` records of ``record_nbytes`` bytes, from a GPU to the CPU.

    Args:
        record_nbytes: The size of a record: a multiple of 16 up to 65536.
        capacity: The number of records that fit: a power of two up to 2**31.
        device: The GPU, named as for :func:`gdrpy.alloc`.
        broker: The broker of a named one, whose kernel's end is another process's
            :class:`gdrpy.channel.KernelEnd`; then ``device`` is named as for the broker's
            calls. None makes one for this process alone.
        name: Its name. The first reader of that name makes it; the next one, with equal sizes, goes
            on where that has ended.
        mode: Permission bits of the memory of a new one, like a file's.
        wait: For how many seconds to wait for the end of the reader before; None does not wait.

    The producers are threads of kernels that get :attr:`ptr`, as many as there are, or
    :meth:`writer`. The one reader is this object; threads may share it. Each record arrives whole
    and once, and those of one producer in the order of its pushes. ``for`` and ``async for`` take
    record after record, up to the end.

    The end of a ``with`` block calls :meth:`close`, which ends pushes that find no room. Keep the
    object until the kernels have ended: its memory is freed when it and its writers are gone.

    Raises ValueError, TypeError, NotFound (no such device), OutOfMemory, BackendUnavailable,
    CudaError; SizeMismatch, InvalidRequest, Timeout, PermissionDenied, BrokerUnavailable for a
    name.
    """

    _writer: weakref.ref[InboxWriter] | None = None

    def __init__(
        self,
        record_nbytes: int = 64,
        capacity: int = 4096,
        device: Any = 0,
        *,
        broker: Broker | None = None,
        name: str | None = None,
        mode: int = 0o600,
        wait: float | None = None,
    ) -> None:
        size = as_record_size("Inbox", "record_nbytes", record_nbytes)
        layout = Layout("Inbox", size, as_capacity("Inbox", capacity, CAPACITY_MAX))
        self._make(layout, super().__init__, device, broker, name, mode, wait)

    def writer(self) -> InboxWriter:
        """A producer on the CPU, in place of kernels: none may push while it is open.

        Raises ValueError while the inbox has another writer, MissingView for a named one.
        """
        if self._named is not None:
            self._named.refuse("writer")
        writer = InboxWriter(self)
        self._writer = only("Inbox.writer", self._writer, writer)
        return writer

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.pop, None)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Take record after record, up to the end, while other tasks run."""
        import asyncio

        begun, taken = time.monotonic(), 0
        while True:
            try:
                record = self.pop(0)
            except Timeout:
                await asyncio.sleep(nap(begun))
                continue
            if record is None:
                return
            yield record
            begun, taken = time.monotonic(), taken + 1
            if taken % _TURN == 0:
                await asyncio.sleep(0)


class InboxWriter(End, _mapping.InboxWriter):
    """An inbox's producers on the CPU. Made by :meth:`Inbox.writer`.

    It keeps its counter in GPU memory, through the mapping, which is slow on a real GPU. It is for
    tests, and for the simulated GPU, which has no kernels. Threads may share it.
    """

    def __repr__(self) -> str:
        state = " CLOSED" if self.closed else ""
        return f"<InboxWriter of {self.inbox!r}{state}>"
