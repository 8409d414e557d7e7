"""Watching regions: a separate connection on which events arrive."""

from __future__ import annotations

import time
from typing import Self

from gdrpy._core._mapping import run
from gdrpy.broker.client.arguments import as_prefix
from gdrpy.broker.client.connection import Connection
from gdrpy.broker.client.transport import Lost
from gdrpy.broker.replies import LOST, Event, Reply, decode_event
from gdrpy.broker.requests import Watch as WatchRequest
from gdrpy.common.resource import Resource
from gdrpy.errors import ProtocolError, Timeout


class Watching(Resource):
    """Events about names that begin with ``prefix``, from :meth:`begin` on; with ``ends``, only
    those of bound regions that end, also of those without a name.

    Only this object uses ``connection``, whose timeout is for replies, not for events.
    """

    _anew = "watch() again"
    _again = "connect to the broker again and watch there"
    _elsewhere = "watch there"

    def __init__(
        self,
        connection: Connection,
        prefix: str,
        timeout: float | None = None,
        *,
        ends: bool = False,
    ) -> None:
        super().__init__()
        self._connection = connection
        self._request = WatchRequest(as_prefix("watch", prefix), ends, id=0)
        self.timeout = timeout
        #: Whether an event may have been received that :meth:`next` has not returned.
        self._hearing = False

    @property
    def life(self) -> str:
        """The identity of the broker's state that the events are about."""
        return self._connection.life

    async def begin(self) -> None:
        """Have the broker send events, if it does not already. Raises as any call does."""
        self._check("watch")
        if not self._connection.ready:
            await self._connection.ask(self._request, Reply)

    async def next(self, deadline: float | None) -> Event | None:
        """The next event; None if ``time.monotonic()`` reaches ``deadline`` before one comes.

        An event "lost" stands for one that came while an exception, as by Ctrl-C, ended this call.
        """
        self._check("watch")
        transport = self._connection.transport
        try:
            if not self._connection.ready:
                raise Lost
            if self._hearing:
                self._hearing = False
                return LOST
            if not await transport.wait(deadline):
                return None
            self._hearing = True
            data, _ = await transport.receive()
        except Lost:
            transport.close()
            await self.begin()
            self._hearing = False
            return LOST
        try:
            event = decode_event(data)
        except ProtocolError:
            transport.close()
            raise
        self._hearing = False
        return event

    def _heard(self, event: Event | None) -> Event:
        """The event. Raises Timeout if it is None."""
        if event is None:
            raise Timeout(f"watch: nothing happened within {self.timeout:g} s")
        return event

    def fileno(self) -> int:
        """A descriptor that is readable when an event has come. An event "lost" may change it."""
        self._check("watch")
        return self._connection.transport.fileno()

    def _release(self) -> None:
        self._connection.close()


def deadline_of(timeout: float | None) -> float | None:
    """The time of ``time.monotonic()`` after so many seconds; None for None."""
    return None if timeout is None else time.monotonic() + timeout


class Watch(Watching):
    """Events as they happen: iterate, in one thread. Close it, or use it in a ``with`` block.

    The iteration raises Timeout after ``timeout`` seconds without an event, and may continue. When
    the broker is restarted, the watch continues with the new one and reports an event "lost".
    """

    def __iter__(self) -> Self:
        self._check("watch")
        return self

    def __next__(self) -> Event:
        return self._heard(run(self.next, deadline_of(self.timeout)))
