"""Where the views of a broker's regions lie in this process."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple
from weakref import ref

from gdrpy.broker.client.connection import Lease
from gdrpy.errors import Closed
from gdrpy.memory.gpu import memory_at
from gdrpy.memory.memory import Memory
from gdrpy.memory.view import Mapping

#: The CPU views of memory without a GPU view, by id(), and their memory. It needs no lock.
_known: dict[int, tuple[ref[Mapping], ref[Memory]]] = {}


class Found(NamedTuple):
    """A range of a region: its memory, its lease, and the range's offset.

    The view is the CPU's if the memory has no ``ptr``.
    """

    memory: Memory
    lease: Lease
    offset: int


def remember(memory: Memory, cpu: Mapping | None) -> None:
    """Have :func:`lease_at` find the memory of a lease by its CPU view, if it has no GPU view."""
    if cpu is not None and memory.ptr is None:
        number = id(cpu)
        _known[number] = ref(cpu, lambda _: _known.pop(number, None)), ref(memory)


def lease_at(address: int, nbytes: int) -> Found | None:
    """The region whose memory a range of addresses is; None for other memory.

    Its object may be gone: arrays of other libraries keep the memory and its lease.
    """
    memory, offset = memory_at(address, nbytes) or _mapped_at(address, nbytes) or (None, 0)
    if memory is None or memory.closed or memory.detached:
        return None
    lease = memory.source
    return Found(memory, lease, offset) if isinstance(lease, Lease) and not lease.lost else None


def _mapped_at(address: int, nbytes: int) -> tuple[Memory, int] | None:
    for one, kept in list(_known.values()):
        view, memory = one(), kept()
        if view is None or memory is None or memory._forked():
            continue
        with suppress(Closed):
            offset = address - view.address
            if 0 <= offset <= view.nbytes - nbytes:
                return memory, offset
    return None
