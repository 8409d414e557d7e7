"""The kernel's end of a named channel, inbox or link, whose CPU's end is of another process."""

from __future__ import annotations

import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gdrpy._core import _mapping
from gdrpy._core._mapping import Undo
from gdrpy.channel.channel import ChannelReader
from gdrpy.channel.inbox import InboxWriter
from gdrpy.channel.link import LinkServer
from gdrpy.channel.named import KERNEL_END, Layout, Listed, Named, as_seconds
from gdrpy.channel.ring import End, only
from gdrpy.errors import Closed, Forked, InvalidRequest, Timeout
from gdrpy.memory.page_locked import lock_pages
from gdrpy.region import Region, alloc

if TYPE_CHECKING:
    from gdrpy.broker.client.broker import Broker


class _Held:
    """The C core's end of a ring, as its reader, writer or server names it."""

    owner: str

    def __repr__(self) -> str:
        return self.owner


class _Channel(_Held, _mapping.Channel):
    """That of a channel."""


class _Inbox(_Held, _mapping.Inbox):
    """That of an inbox."""


class _Link(_Held, _mapping.Link):
    """That of a link."""


_KINDS: dict[str, Any] = {"Channel": _Channel, "Inbox": _Inbox, "Link": _Link}
_STAND_INS = {"Channel": "reader", "Inbox": "writer", "Link": "server"}


class KernelEnd(End):
    """The kernel's end of a channel, inbox or link that another process made by a name.

    Args:
        broker: The broker.
        name: The name.
        wait: For how many seconds to wait for the name, and for the end of the kernel's end before
            this; None does not wait.

    A name has one kernel's end at a time, and the next goes on where that has ended. Kernels of the
    GPU that the memory lies on get :attr:`ptr`. A kernel sees the end when the CPU's end was closed
    or its process ended; :meth:`wait` tells when to launch it again.

    Close it when the kernels have ended: they use memory that is given back then. Threads may share
    it.

    Raises NotFound, Timeout, InvalidRequest (the name has a kernel's end, or is not of a channel,
    inbox or link), PermissionDenied, BrokerUnavailable, MissingView (this process does not see the
    GPU), OutOfMemory, CudaError.
    """

    def __init__(self, broker: Broker, name: str, *, wait: float | None = None) -> None:
        call = "KernelEnd"
        self._named = named = Named(call, broker, name, wait)
        self._condition = threading.Condition()
        #: Of the threads that ask the broker: what was asked later is noted later.
        self._asking = threading.Lock()
        #: The CPU's ends that are there, the one that was closed last, and whether it was the last
        #: one that left.
        self._present: set[int] = set()
        self._closer = 0
        self._finished = False
        #: Why no CPU's end will be heard of any more, if so, and the error that it comes from.
        self._lost = ""
        self._failure: Exception | None = None
        #: Whether kernels are told of an end: until wait() finds that there is work.
        self._ended = False
        self._stand_in: weakref.ref[Any] | None = None
        with Undo() as undo, named.naming():
            undo.callback(named.close)
            named.require_ring(wait)
            named.enter(named.kernel_name, "a kernel's end")
            # Not closed if this raises: they go with the ring and the mapping, which use them.
            memory, host = named.opened()
            named.hold(memory, host)
            self._layout = Layout.of(call, memory, host)
            _ = memory.ptr  # raises MissingView, with the reason
            device = memory.device
            assert device is not None
            locked = lock_pages(host.cpu, device, host)
            sizes = self._layout.sizes
            self._ring = _KINDS[self._layout.kind](memory.cpu, locked, *sizes, KERNEL_END)
            self._ring.owner = f"the KernelEnd of {name!r}"
            # In memory of this process alone: no other may change the addresses in it.
            self._descriptor: Region = undo.keep(alloc(4096, device))
            self._descriptor.write(self._ring._descriptor())
            self._device = device
            self._ring._begin(0)  # before the CPU's end, told of this one, looks at the ring
            named.watch(self)
            with self._condition:
                if not self._lost:
                    self._ring._begin(self._caller)
                    self._ended = False  # the thread may have looked meanwhile; no kernel has
            undo.forget()

    @property
    def _caller(self) -> int:
        return min(self._present, default=0)

    @property
    def name(self) -> str:
        """The name."""
        return self._named.name

    @property
    def kind(self) -> str:
        """What it is an end of: "Channel", "Inbox" or "Link"."""
        return self._layout.kind

    @property
    def record_nbytes(self) -> int:
        """Bytes of a record, or of a request."""
        return self._layout.record_nbytes

    @property
    def answer_nbytes(self) -> int:
        """Bytes of a link's answer, else 0."""
        return self._layout.answer_nbytes

    @property
    def capacity(self) -> int:
        """How many records the ring holds."""
        return self._layout.capacity

    @property
    def device(self) -> int:
        """The ordinal of the GPU whose kernels use it."""
        return self._device

    @property
    def ptr(self) -> int:
        """GPU address of what the kernel is given. Raises Closed, Forked."""
        self._check("KernelEnd.ptr")
        return self._descriptor.ptr

    @property
    def closed(self) -> bool:
        """Whether close() has been called."""
        return self._ring is None

    def wait(self, timeout: float | None = None, *, new: bool = False) -> bool:
        """Wait until there is work for a kernel, and make the ring ready: then launch it.

        Returns true if the CPU's end is there, or has left records; false if the last CPU's end was
        closed and nothing is left. With ``new``, this waits for the next CPU's end instead of
        returning false, as it always does after the death of one. No kernel may use the ring during
        this call: it takes back a kernel's ``stop`` and ``finish``.

        Raises Timeout after so many seconds, Closed (also if the name was deleted), Forked.
        """
        call = "KernelEnd.wait"
        seconds = as_seconds(call, "timeout", timeout)
        until = None if seconds is None else time.monotonic() + seconds
        self._check(call)
        with suppress(*self._named.broker._unreached):  # the thread asks again
            self._look(set())
        with self._condition:
            while True:
                self._check(call)
                if self._lost:
                    raise Closed(
                        f"{call}: {self._lost}: close this end, and open the next"
                    ) from self._failure
                if self._ring._begin(self._caller) or self._present:
                    self._ended = False
                    return True
                if self._finished and not new:
                    return False
                left = None if until is None else max(0.0, until - time.monotonic())
                if not self._condition.wait(left):
                    raise Timeout(
                        f"{call}: {self.name!r} has no CPU's end, and none came within {timeout} s"
                    )

    def _look(self, _ready: set[str]) -> None:
        """Tell kernels of the end of CPU's ends that are gone."""
        with self._asking:
            self._note(self._named.listed())

    def _note(self, found: Listed | None) -> None:
        with self._condition:
            if self._ring is None or self._lost:
                return
            if found is None:
                self._lost = f"{self.name!r} was deleted, or the broker lost its state"
            present = set() if found is None else found.cpu
            left, closer = self._present - present, self._ring._closer
            self._present = present
            if closer != self._closer:  # perhaps it also came since the last look
                self._finished = closer != 0
            elif left:
                self._finished = closer in left
            self._closer = closer
            # A kernel that saw an end before is launched again after wait() alone.
            self._ended |= bool(self._lost or (left and (not present or self.kind != "Channel")))
            if self._lost:
                self._ring._leave()
            if self._ended:  # told again at each look: the next reader tells of room in that word
                self._ring._end()
            self._condition.notify_all()

    def _fail(self, error: Exception) -> None:
        """Tell kernels of the end, and wait() of the error, because no end will be heard of."""
        with self._condition:
            if self._ring is not None:
                self._lost = "the thread that hears of the CPU's ends has failed"
                self._failure, self._ended = error, True
                self._ring._end()
                self._condition.notify_all()

    def reader(self) -> ChannelReader:
        """A consumer on the CPU, in place of a kernel of a channel: see Channel.reader()."""
        reader: ChannelReader = self._stood_in(ChannelReader)
        return reader

    def writer(self) -> InboxWriter:
        """A producer on the CPU, in place of kernels of an inbox: see Inbox.writer()."""
        writer: InboxWriter = self._stood_in(InboxWriter)
        return writer

    def server(self) -> LinkServer:
        """A server on the CPU, in place of a kernel of a link: see Link.server()."""
        server: LinkServer = self._stood_in(LinkServer)
        return server

    def _stood_in(self, kind: Any) -> Any:
        names = {ChannelReader: "reader", InboxWriter: "writer", LinkServer: "server"}
        call, right = f"KernelEnd.{names[kind]}", _STAND_INS[self.kind]
        self._check(call)
        if names[kind] != right:
            raise InvalidRequest(f"{call}: {self.name!r} is of a {self.kind}: call {right}()")
        stand_in = kind(self._ring)
        stand_in._owner = self  # which gives the place up when it is dropped
        self._stand_in = only(call, self._stand_in, stand_in)
        return stand_in

    def _check(self, call: str) -> None:
        if self._ring is None:
            raise Closed(f"{call}: this end is closed: open another")
        if self._named.closed:
            raise Forked(
                f"{call}: this KernelEnd belongs to the parent process: a forked child must open "
                f"one, once the parent's is closed"
            )

    def close(self) -> None:
        """Give this end up, when its kernels have ended. May be called again.

        The CPU's end then raises Closed, until another process takes over. Calls of this end's
        reader, writer or server raise Closed.
        """
        if self._named.closed:
            return
        with self._condition:
            self._ring._leave()
            self._ring = None
            self._named.memory = self._named.host = None  # type: ignore[assignment]
            self._condition.notify_all()
        self._descriptor.close()
        self._named.close()

    def __repr__(self) -> str:
        state = "CLOSED" if self.closed else f"{self._layout}"
        return f"<KernelEnd of {self.name!r}: {state}>"
