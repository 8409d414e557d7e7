"""The broker for asyncio: the calls of :class:`gdrpy.Broker` as coroutines.

::

    async with await gdrpy.aio.connect() as broker:
        region = await broker.get("kv-cache", gpu=False)
        async for event in broker.watch():
            ...

Calls to the broker suspend; calls that use the memory (mapping it, ``region.write``) do not, except
``region.write_async`` and its like. An object belongs to the event loop that it was made in.
"""

from __future__ import annotations

import asyncio
import contextlib
import copyreg
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar

from gdrpy._core._mapping import try_alone
from gdrpy.broker.client import (
    arrays,
    calls,
    checkpoints,
    lookup,
    region_calls,
    sleeping,
    snapshots,
)
from gdrpy.broker.client.base import BrokerBase, reach
from gdrpy.broker.client.broker import reduce_region
from gdrpy.broker.client.region import LeasedRegion
from gdrpy.broker.client.transport import (
    Lost,
    Packet,
    Silent,
    Transport,
    failure,
    receive_packet,
    refused,
)
from gdrpy.broker.client.watch import Watching, deadline_of
from gdrpy.broker.replies import Event

T = TypeVar("T")

#: Seconds between attempts to connect while the broker's backlog is full: no event reports room.
_CONNECT_PAUSE = 0.005
#: Seconds until it is tried again to give leases back: a call may be waiting for room meanwhile.
_SEND_PAUSE = 0.05


class _Transport(Transport):
    """A transport whose coroutines suspend until the event loop wakes them."""

    def __init__(self, timeout: float | None) -> None:
        super().__init__(timeout)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._turn = asyncio.Lock()
        #: Held by what does something at once, without the turn.
        self._doing = threading.Lock()
        #: The pending wait: only :meth:`close` closes the socket during one.
        self._waiting: asyncio.Future[None] | None = None
        #: When what has no room in the socket is sent again.
        self._later: asyncio.TimerHandle | None = None

    async def connect(self, path: str) -> None:
        sock = self.begin()
        try:
            sock.setblocking(False)
            deadline = deadline_of(self.timeout)
            while True:
                try:
                    sock.connect(path)
                    break
                except BlockingIOError:
                    if deadline is not None and time.monotonic() >= deadline:
                        raise
                await asyncio.sleep(_CONNECT_PAUSE)
        except OSError as error:
            self.hang_up()
            raise refused(error, path) from error
        except BaseException:
            self.hang_up()
            raise
        self.connected = True

    async def alone(self, do: Callable[..., Awaitable[T]], *args: Any) -> T:
        async with self._turn:
            return await do(*args)

    def try_alone(self, do: Callable[[], bool]) -> bool:
        if threading.get_ident() != self._thread:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.try_alone, do)
            return False
        # Nothing else can begin meanwhile, but for finalizers: all calls run in this thread.
        return not self._turn.locked() and try_alone(self._doing, do)

    async def exchange(self, packet: bytes) -> Packet:
        deadline = deadline_of(self.timeout)
        while not self._send(packet):
            await self._ready(self._loop.add_writer, self._loop.remove_writer, deadline)
        return await self._receive(deadline)

    async def receive(self) -> Packet:
        return await self._receive(deadline_of(self.timeout))

    async def wait(self, deadline: float | None) -> bool:
        try:
            await self._ready(self._loop.add_reader, self._loop.remove_reader, deadline)
        except Silent:
            return False
        return True

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def send_now(self, packet: bytes, again: Callable[[], object]) -> bool:
        if not self.connected:
            return False
        try:
            if self._send(packet):
                return True
        except Lost:
            return False
        if self._later is None:
            self._later = self._loop.call_later(_SEND_PAUSE, self._call_again, again)
        return False

    def _call_again(self, again: Callable[[], object]) -> None:
        self._later = None
        again()

    def close(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._loop.remove_reader(self.fileno())
            self._loop.remove_writer(self.fileno())
            if not waiting.done():
                waiting.set_exception(Lost("it was closed here"))
        self.abandon()

    def _send(self, packet: bytes) -> bool:
        assert self._sock is not None
        try:
            self._sock.send(packet)
        except BlockingIOError:
            return False
        except OSError as error:
            raise failure(error) from error
        return True

    async def _receive(self, deadline: float | None) -> Packet:
        while True:
            await self._ready(self._loop.add_reader, self._loop.remove_reader, deadline)
            assert self._sock is not None
            with contextlib.suppress(Silent):  # a spurious wake-up
                return receive_packet(self._sock)

    async def _ready(
        self, watch: Callable[..., object], ignore: Callable[[int], object], deadline: float | None
    ) -> None:
        """Suspend until the socket is ready. Raises Silent after the deadline, Lost on close()."""
        number = self.fileno()
        waiting = self._waiting = self._loop.create_future()
        watch(number, _wake, waiting)
        try:
            async with asyncio.timeout_at(deadline):
                await waiting
        except TimeoutError:
            raise Silent from None
        finally:
            if self._waiting is waiting:  # otherwise another socket may have the number now
                self._waiting = None
                ignore(number)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


class BrokerRegion(LeasedRegion):
    """Like :class:`gdrpy.BrokerRegion`, but its calls to the broker are coroutines.

    The property ``stale`` is awaited too: ``await region.stale``.
    """

    attach = region_calls.attach  # type: ignore[assignment]
    publish = region_calls.publish
    seal = region_calls.seal
    set_metadata = region_calls.set_metadata
    digest = region_calls.digest
    delete = region_calls.delete
    info = region_calls.info
    stale = property(region_calls.stale)


copyreg.pickle(BrokerRegion, reduce_region)


class Watch(Watching):
    """Events as they happen, by ``async for`` in one task: like the Watch of ``gdrpy.Broker``.

    Watching begins on entering ``async with``, or when the first event is awaited.
    """

    _begun = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        deadline = deadline_of(self.timeout)
        await self._begin_once()
        return self._heard(await self.next(deadline))

    async def _begin_once(self) -> None:
        if not self._begun:
            await self.begin()
            self._begun = True

    async def __aenter__(self) -> Self:
        await self._begin_once()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class Broker(BrokerBase[BrokerRegion]):
    """A running broker: like :class:`gdrpy.Broker`, with coroutines. Made by :func:`connect`.

    Tasks may share it; calls run one at a time. A call that is cancelled while it waits for the
    reply drops the connection; the next call connects again.
    """

    allocate = calls.allocate
    create = calls.create
    get = calls.get
    publish_many = calls.publish_many
    get_many = calls.get_many
    attach_many = calls.attach_many
    put = arrays.put
    put_tensors = arrays.put_tensors
    load = arrays.load
    load_checkpoint = checkpoints.load_checkpoint
    save = snapshots.save
    restore = snapshots.restore
    keep_many = sleeping.keep_many
    sleep_many = sleeping.sleep_many
    wake_many = sleeping.wake_many
    wake = sleeping.wake
    tensors = checkpoints.tensors
    list = lookup.list_regions
    stat = lookup.stat
    delete = calls.delete
    seal = calls.seal
    chmod = calls.chmod
    rounded_size = calls.rounded_size
    status = calls.status
    _region_type = BrokerRegion

    def watch(self, prefix: str = "", timeout: float | None = None) -> Watch:
        """Events about regions whose names begin with ``prefix``."""
        self._check("Broker.watch")
        return Watch(self._separate(), prefix, timeout)

    def _release(self) -> None:
        self._connection.close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *raised: Any) -> None:
        self.__exit__(*raised)


async def connect(
    socket: str | None = None, timeout: float = 10.0, reconnect: float = 5.0
) -> Broker:
    """Connect to the running broker. Parameters and errors are those of :func:`gdrpy.connect`."""
    return Broker(await reach(_Transport, socket, timeout, reconnect), _Transport)
