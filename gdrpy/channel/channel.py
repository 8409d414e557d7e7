"""A channel: fixed-size records from a CPU producer to a GPU consumer, through a ring."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gdrpy._core import _mapping
from gdrpy.channel.named import Layout
from gdrpy.channel.ring import End, Ring, as_capacity, as_record_size, only

if TYPE_CHECKING:
    from gdrpy.broker.client.broker import Broker

#: In records. No address space holds this many of the largest.
CAPACITY_MAX = 1 << 40


class Channel(Ring, _mapping.Channel):
    """A ring of ``capacity`` records of ``record_nbytes`` bytes, from the CPU to a GPU.

    Args:
        record_nbytes: The size of a record: a multiple of 16 up to 65536.
        capacity: The number of records that fit: a power of two up to 2**40.
        device: The GPU, named as for :func:`gdrpy.alloc`.
        broker: The broker of a named one, whose kernel's end is another process's
            :class:`gdrpy.channel.KernelEnd`; then ``device`` is named as for the broker's
            calls. None makes one for this process alone.
        name: Its name. The first producer of that name makes it; others join it, with equal sizes.
        mode: Permission bits of the memory of a new one, like a file's.

    The one producer is this object, whose pushes are stores through the mapping of GPU memory;
    threads may share it. The one consumer is a kernel that gets :attr:`ptr`, or :meth:`reader`.
    Each record arrives whole and once, in the order of the pushes.

    The end of a ``with`` block calls :meth:`close`, which tells the consumer that no record
    follows. Keep the object until the kernel has ended: its memory is freed when it and its readers
    are gone.

    Raises ValueError, TypeError, NotFound (no such device), OutOfMemory, BackendUnavailable,
    CudaError; SizeMismatch, InvalidRequest, PermissionDenied, BrokerUnavailable for a name.
    """

    _reader: weakref.ref[ChannelReader] | None = None

    def __init__(
        self,
        record_nbytes: int = 64,
        capacity: int = 4096,
        device: Any = 0,
        *,
        broker: Broker | None = None,
        name: str | None = None,
        mode: int = 0o600,
    ) -> None:
        size = as_record_size("Channel", "record_nbytes", record_nbytes)
        layout = Layout("Channel", size, as_capacity("Channel", capacity, CAPACITY_MAX))
        self._make(layout, super().__init__, device, broker, name, mode, None)

    def reader(self) -> ChannelReader:
        """A consumer on the CPU, in place of a kernel. It begins after the records already taken.

        Raises ValueError while the channel has another reader, Closed after one was closed or a
        kernel has stopped, MissingView for a named channel.
        """
        if self._named is not None:
            self._named.refuse("reader")
        reader = ChannelReader(self)
        self._reader = only("Channel.reader", self._reader, reader)
        return reader


class ChannelReader(End, _mapping.ChannelReader):
    """A channel's consumer on the CPU. Made by :meth:`Channel.reader`.

    It reads GPU memory through the mapping, which is slow on a real GPU. It is for tests, and for
    the simulated GPU, which has no kernels. Iterating takes record after record, up to the end.
    Threads may share it. The channel must have no other consumer.
    """

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.pop, None)

    def __repr__(self) -> str:
        state = " CLOSED" if self.closed else ""
        return f"<ChannelReader of {self.channel!r}{state}>"
