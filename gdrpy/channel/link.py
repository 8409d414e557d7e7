"""A link: requests to a kernel, each of which it answers."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

from gdrpy._core import _mapping
from gdrpy.channel.inbox import CAPACITY_MAX
from gdrpy.channel.named import Layout
from gdrpy.channel.ring import End, Ring, Rooted, as_capacity, as_record_size, nap, only

if TYPE_CHECKING:
    from gdrpy.broker.client.broker import Broker


class Link(Ring, _mapping.Link):
    """Requests of ``record_nbytes`` bytes to a kernel, and its answers of ``answer_nbytes`` bytes.

    Args:
        record_nbytes: The size of a request: a multiple of 16 up to 65536.
        answer_nbytes: The size of an answer, in the same way; None: that of a request.
        capacity: How many requests may be under way: a power of two up to 2**31. Calls are fastest
            with up to 2048 bytes of requests, as 32 of 64 bytes: see docs/channel.md.
        device: The GPU, named as for :func:`gdrpy.alloc`.
        broker: The broker of a named one, whose kernel's end is another process's
            :class:`gdrpy.channel.KernelEnd`; then ``device`` is named as for the broker's
            calls. None makes one for this process alone.
        name: Its name. The first caller of that name makes it; the next one, with equal sizes, goes
            on where that has ended.
        mode: Permission bits of the memory of a new one, like a file's.
        wait: For how many seconds to wait for the end of the caller before; None does not wait.

    A kernel that gets :attr:`ptr`, or :meth:`server`, answers each request once, in any order:
    request number i, counted from 0, by answer number i. Threads may share the object.

    The end of a ``with`` block calls :meth:`close`, which tells the kernel that no request follows.
    Keep the object until the kernel has ended: its memory is freed when it, its answers and its
    servers are gone.

    Raises ValueError, TypeError, NotFound (no such device), OutOfMemory, BackendUnavailable,
    CudaError; SizeMismatch, InvalidRequest, Timeout, PermissionDenied, BrokerUnavailable for a
    name.
    """

    _server: weakref.ref[LinkServer] | None = None

    def __init__(
        self,
        record_nbytes: int = 64,
        answer_nbytes: int | None = None,
        capacity: int = 32,
        device: Any = 0,
        *,
        broker: Broker | None = None,
        name: str | None = None,
        mode: int = 0o600,
        wait: float | None = None,
    ) -> None:
        size = as_record_size("Link", "record_nbytes", record_nbytes)
        answer = size
        if answer_nbytes is not None:
            answer = as_record_size("Link", "answer_nbytes", answer_nbytes)
        layout = Layout("Link", size, as_capacity("Link", capacity, CAPACITY_MAX), answer)
        self._make(layout, super().__init__, device, broker, name, mode, wait)

    def submit(self, record: Any, timeout: float | None = None) -> Answer:
        """Push a request, and return what its answer will be found by.

        Args:
            record: A contiguous buffer of `record_nbytes` bytes.
            timeout: For how many seconds to wait while `capacity` requests are under way, or one of
                them that long ago is not answered; None waits forever.

        Raises ValueError, Timeout, Closed (also if the kernel has stopped), Forked.
        """
        return Answer(self, record, timeout)

    def server(self) -> LinkServer:
        """A server on the CPU, in place of a kernel. It begins after the requests already taken.

        Raises ValueError while the link has another server, Closed after one was closed or a kernel
        has stopped, MissingView for a named link.
        """
        if self._named is not None:
            self._named.refuse("server")
        server = LinkServer(self)
        self._server = only("Link.server", self._server, server)
        return server

    def __repr__(self) -> str:
        where = self._region.location if self._named is None else repr(self._named)
        state = "CLOSED" if self.closed else f"on {where}"
        return (
            f"<Link of {self.capacity} requests of {self.record_nbytes} bytes, answers of "
            f"{self.answer_nbytes} {state}>"
        )


class Answer(Rooted, _mapping.Answer):
    """The answer to a request. Made by :meth:`Link.submit`.

    ``await answer`` is ``answer.result()`` for asyncio: other tasks run until it is there. An
    answer that is dropped is received nevertheless, so that its place is free again.
    """

    def __await__(self) -> Generator[Any, None, bytes]:
        return self._wait().__await__()

    async def _wait(self) -> bytes:
        import asyncio

        begun = time.monotonic()
        while not self.done():
            await asyncio.sleep(nap(begun))
        return self.result(0)

    def __repr__(self) -> str:
        return f"<Answer to request {self.number} of {self.link!r}>"


class LinkServer(End, _mapping.LinkServer):
    """A link's server on the CPU: it pops requests, and answers them. Made by :meth:`Link.server`.

    It reads GPU memory through the mapping, which is slow on a real GPU. It is for tests, and for
    the simulated GPU, which has no kernels. Requests are numbered in the order of the pops:
    :attr:`popped` is the number of the next one. Iterating takes request after request, up to the
    end. One thread pops, since only it knows the number of what it popped; others may answer
    meanwhile. The link must have no other server.
    """

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.pop, None)

    def serve(self, function: Callable[[bytes], Any]) -> None:
        """Answer each request by ``function(request)``, up to the end of the link, and close.

        It closes also when ``function`` raises, so that no call waits for ever.
        """
        with self:
            for number, record in enumerate(self, self.popped):
                self.answer(number, function(record))

    def __repr__(self) -> str:
        state = " CLOSED" if self.closed else ""
        return f"<LinkServer of {self.link!r}{state}>"
