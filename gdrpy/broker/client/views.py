"""Where the views of a broker's regions lie in this process."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple
from weakref import ref

from gdrpy.broker.client.connection import Lease
from gdrpy.errors import Closed
from gdrpy.memory.memory import Memory
from gdrpy.memory.view import Mapping

#: The views, by id(): memory with a GPU view, or the CPU view of other memory; and their memory.
#: Dicts need no lock for that.
_known: dict[int, tuple[ref[Memory | Mapping], ref[Memory]]] = {}


class Found(NamedTuple):
    """A range of a region: its memory, its lease, and the range's offset.

    The view is the CPU's if the memory has no ``ptr``.
    """

    memory: Memory
    lease: Lease
    offset: int


def remember(memory: Memory, cpu: Mapping | None) -> None:
    """Have :func:`lease_at` find the memory of a lease by its GPU view, else by its CPU view."""
    view = cpu if memory.ptr is None else memory
    if view is not None:
        number = id(view)
        _known[number] = ref(view, lambda _: _known.pop(number, None)), ref(memory)


def lease_at(address: int, nbytes: int) -> Found | None:
    """The region whose memory a range of addresses is; None for other memory.

    Its object may be gone: arrays of other libraries keep the memory and its lease.
    """
    for one, memory in list(_known.values()):
        view, kept = one(), memory()
        if view is None or kept is None or kept._forked() or view.closed:
            continue
        with suppress(Closed):  # another thread has closed it
            start, size = _range(view)
            lease = kept.source
            if isinstance(lease, Lease) and not lease.lost and start <= address:
                offset = address - start
                if offset + nbytes <= size:
                    return Found(kept, lease, offset)
    return None


def _range(view: Memory | Mapping) -> tuple[int, int]:
    if isinstance(view, Mapping):
        return view.address, view.nbytes
    assert view.ptr is not None
    return view.ptr, view.size
