"""A channel: fixed-size records from a CPU producer to a GPU consumer, through a ring."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from gdrpy import cuda
from gdrpy._core import _mapping
from gdrpy._core._mapping import Undo
from gdrpy.common.arguments import as_int
from gdrpy.common.resource import Closing
from gdrpy.memory.page_locked import page_locked
from gdrpy.region import alloc

#: The size of a record is a multiple of the unit and at most the maximum, in bytes.
RECORD_UNIT, RECORD_MAX = 16, 64 * 1024
#: In records. No address space holds this many of the largest.
CAPACITY_MAX = 1 << 40


def include_dir() -> str:
    """The folder for a CUDA compiler's ``-I``: with it, ``#include <gdrpy/channel.cuh>``."""
    return str(Path(__file__).parent.parent / "include")


class _End(Closing):
    """One end of a channel, which cannot be copied."""

    closed: Any

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled: it belongs to its process; "
            f"send records to that process, or share a region and a flag of it"
        )


class Channel(_End, _mapping.Channel):
    """A ring of ``capacity`` records of ``record_nbytes`` bytes, from the CPU to a GPU.

    Args:
        record_nbytes: The size of a record: a multiple of 16 up to 65536.
        capacity: The number of records that fit: a power of two up to 2**40.
        device: The GPU, named as for :func:`gdrpy.alloc`.

    The one producer is this object, whose pushes are stores through the mapping of GPU memory;
    threads may share it. The one consumer is a kernel that gets :attr:`ptr`, or :meth:`reader`.
    Each record arrives whole and once, in the order of the pushes.

    The end of a ``with`` block calls :meth:`close`, which tells the consumer that no record
    follows. Keep the object until the kernel has ended: its memory is freed when it and its readers
    are gone.

    Raises ValueError, TypeError, NotFound (no such device), OutOfMemory, BackendUnavailable,
    CudaError.
    """

    _reader: weakref.ref[ChannelReader] | None = None

    def __init__(self, record_nbytes: int = 64, capacity: int = 4096, device: Any = 0) -> None:
        size = as_int("Channel", "record_nbytes", record_nbytes)
        if not 0 < size <= RECORD_MAX or size % RECORD_UNIT:
            raise ValueError(
                f"Channel: record_nbytes must be a multiple of {RECORD_UNIT} up to {RECORD_MAX}, "
                f"not {size}"
            )
        count = as_int("Channel", "capacity", capacity)
        if not 0 < count <= CAPACITY_MAX or count & (count - 1):
            raise ValueError(
                f"Channel: capacity must be a power of two up to {CAPACITY_MAX}, not {count}"
            )
        ordinal = cuda.ordinal("Channel", device)
        with Undo() as undo:
            region = undo.keep(alloc(_mapping.CHANNEL_NBYTES + count * size, ordinal))
            host = undo.keep(page_locked(_mapping.CHANNEL_HOST_NBYTES, ordinal))
            super().__init__(region.cpu, host, size, count)
            undo.forget()
        self._region = region

    @property
    def device(self) -> int:
        """The ordinal of the GPU that the records go to."""
        assert self._region.device is not None
        return self._region.device

    @property
    def ptr(self) -> int:
        """GPU address of the ``struct gdr_channel`` for the consumer. Raises Forked."""
        return self._region.ptr

    def reader(self) -> ChannelReader:
        """A consumer on the CPU, in place of a kernel. It begins after the records already taken.

        Raises ValueError while the channel has another reader.
        """
        reader = ChannelReader(self)
        other = self._reader() if self._reader else None
        if other is not None and not other.closed:
            raise ValueError("Channel.reader: this channel has a reader, and may have only one")
        self._reader = weakref.ref(reader)
        return reader

    def __repr__(self) -> str:
        state = "CLOSED" if self.closed else f"on {self._region.location}"
        return f"<Channel of {self.capacity} records of {self.record_nbytes} bytes {state}>"


class ChannelReader(_End, _mapping.ChannelReader):
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
