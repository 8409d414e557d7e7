"""What channels, inboxes and links have in common: records in rings, and ends that close."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from gdrpy import cuda
from gdrpy._core._mapping import Undo
from gdrpy.channel.named import CpuEnd, Layout
from gdrpy.common.arguments import as_int
from gdrpy.common.resource import Closing
from gdrpy.errors import InvalidRequest
from gdrpy.memory.page_locked import lend
from gdrpy.memory.view import Mapping
from gdrpy.region import Region, alloc

if TYPE_CHECKING:
    from gdrpy.broker.client.broker import Broker

#: The size of a record is a multiple of the unit and at most the maximum, in bytes.
RECORD_UNIT, RECORD_MAX = 16, 64 * 1024

#: A task that awaits a record looks for it in each turn of the event loop for so many seconds; then
#: it sleeps between looks for a small part of the time waited, in seconds within the limits.
_BUSY, _PART, _LEAST_NAP, _LONGEST_NAP = 2e-3, 256, 1e-5, 1e-3


def as_record_size(call: str, name: str, value: object) -> int:
    """A size of records in bytes. Raises TypeError, ValueError."""
    size = as_int(call, name, value)
    if not 0 < size <= RECORD_MAX or size % RECORD_UNIT:
        raise ValueError(
            f"{call}: {name} must be a multiple of {RECORD_UNIT} up to {RECORD_MAX}, not {size}"
        )
    return size


def as_capacity(call: str, value: object, most: int) -> int:
    """A number of records. Raises TypeError, ValueError."""
    count = as_int(call, "capacity", value)
    if not 0 < count <= most or count & (count - 1):
        raise ValueError(f"{call}: capacity must be a power of two up to {most}, not {count}")
    return count


def allocate(undo: Undo, layout: Layout, device: Any) -> tuple[Region, Mapping]:
    """Memory of a GPU, and page-locked memory for it, which holds what it held before."""
    ordinal = cuda.ordinal(layout.kind, device)
    memory = undo.keep(alloc(layout.nbytes, ordinal))
    return memory, undo.keep(lend(layout.host_nbytes, ordinal))


def nap(begun: float) -> float:
    """For how many seconds a task sleeps that has waited since ``begun``, by time.monotonic()."""
    waited = time.monotonic() - begun
    return 0 if waited < _BUSY else min(max(waited / _PART, _LEAST_NAP), _LONGEST_NAP)


class Rooted:
    """What cannot leave its process."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled: it belongs to its process; "
            f"open the other end of a named ring there, or share a region and a flag of it"
        )


class End(Rooted, Closing):
    """One end of a ring."""

    closed: Any


E = TypeVar("E", bound=End)


def only(call: str, last: weakref.ref[E] | None, end: E) -> weakref.ref[E]:
    """Remember the end that ``call`` makes. Raises ValueError if the last one is still open."""
    other = last() if last else None
    if other is not None and not other.closed:
        owner, name = call.split(".")
        raise ValueError(f"{call}: this {owner} has a {name}, and may have only one")
    return weakref.ref(end)


class Ring(End):
    """The end that has the memory: of a GPU, and page-locked."""

    capacity: Any
    record_nbytes: Any
    _region: Region
    #: What a named one shares with the kernel's end, which is another process's.
    _named: CpuEnd | None = None

    def _make(
        self,
        layout: Layout,
        begin: Callable[..., None],
        device: Any,
        broker: Broker | None,
        name: str | None,
        mode: int,
        wait: float | None,
    ) -> None:
        """Call ``begin``, the C core's __init__, with memory: of this process, or of a broker."""
        with Undo() as undo:
            if broker is None and name is None:
                region, host = allocate(undo, layout, device)
                begin(region.cpu, host, *layout.sizes)
                self._region = region
            else:
                named = CpuEnd(layout, broker, name, device, mode, wait)
                undo.callback(named.close)
                begin(*named.arguments)
                named.begin(self)
                self._named = named
            undo.forget()

    @property
    def device(self) -> int:
        """The ordinal of the GPU whose kernels have the other end.

        Raises MissingView for a named one: the kernel's end has it.
        """
        if self._named is not None:
            self._named.refuse("device")
        assert self._region.device is not None
        return self._region.device

    @property
    def ptr(self) -> int:
        """GPU address of what the kernel is given.

        Raises Forked, and MissingView for a named one: the kernel's end has it.
        """
        if self._named is not None:
            self._named.refuse("ptr")
        return self._region.ptr

    @property
    def name(self) -> str | None:
        """The name that other processes find it by."""
        return None if self._named is None else self._named.name

    def wait_for_kernel(self, timeout: float | None = None) -> None:
        """Wait until a named one has a kernel's end, as after a call that raised Closed.

        Raises Timeout after so many seconds, Closed (this end is, or the name was deleted), Forked,
        InvalidRequest (it has no name, so the kernel's end is this process's).
        """
        if self._named is None:
            raise InvalidRequest(
                f"{type(self).__name__}.wait_for_kernel: this {type(self).__name__} has no name: "
                f"its kernel's end is this process's"
            )
        self._named.wait_for_kernel(timeout)

    def close(self) -> None:
        super().close()
        if self._named is not None:
            self._named.close()

    def __repr__(self) -> str:
        where = self._region.location if self._named is None else repr(self._named)
        state = "CLOSED" if self.closed else f"on {where}"
        name = type(self).__name__
        return f"<{name} of {self.capacity} records of {self.record_nbytes} bytes {state}>"
