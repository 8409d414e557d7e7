"""The common base of the blocking and the asyncio client."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Generic, TypeVar

from gdrpy.broker.client.arguments import as_seconds
from gdrpy.broker.client.connection import Connection, Lease, Parcels, R
from gdrpy.broker.client.transport import Lost, Silent, Transport
from gdrpy.broker.place import VARIABLE, connect_path
from gdrpy.broker.requests import Request, call_of
from gdrpy.broker.unix import PATH_ROOM
from gdrpy.common.arguments import as_path
from gdrpy.common.resource import Resource
from gdrpy.errors import BrokerUnavailable, Error, Timeout

Region_co = TypeVar("Region_co", covariant=True)

#: Makes an unconnected transport that waits so many seconds for a reply; None is no limit.
TransportMaker = Callable[[float | None], Transport]


class BrokerBase(Resource, Generic[Region_co]):
    """A connection of this process to a running broker, whose regions are ``_region_type``."""

    _region_type: type[Region_co]
    _anew = "connect() again"
    _again = "connect to the broker again"
    _elsewhere = "connect to the broker there"
    #: What a call raises while there is no broker, or this process has no room for a connection.
    _unreached = (Error, OSError, Lost, Silent)

    def __init__(self, connection: Connection, make_transport: TransportMaker) -> None:
        super().__init__()
        self._connection = connection
        self._make_transport = make_transport
        #: Of threads that put regions to sleep: none detaches what another one copies.
        self._copying = Lock()

    @property
    def socket(self) -> str:
        """The path of the broker's socket."""
        return self._connection.path

    @property
    def life(self) -> str:
        """The identity of the broker's state, 32 hexadecimal digits: regions are of one life."""
        return self._connection.life

    async def _ask(
        self, request: Request, kind: type[R], leases: Sequence[Lease] = ()
    ) -> tuple[R, Parcels]:
        """The reply to a request: see :meth:`Connection.ask`."""
        connection = self._connection
        if not connection.transport.connected:  # never after close(), or in a forked child
            self._check(call_of(request))
        try:
            return await connection.transport.alone(connection.ask, request, kind, leases)
        finally:
            if connection.returned:
                connection.flush()

    def _separate(self, *, endless: bool = False) -> Connection:
        """A separate connection, not open yet; ``endless`` waits for a reply without limit."""
        connection = self._connection
        timeout = None if endless else connection.transport.timeout
        return Connection(self._make_transport(timeout), connection.path, connection.reconnect)

    def __repr__(self) -> str:
        if self.closed:
            return f"<{type(self).__name__} CLOSED>"
        return f"<{type(self).__name__} at {self.socket}>"


async def reach(
    make_transport: TransportMaker, socket: str | None, timeout: float, reconnect: float
) -> Connection:
    """A connection to the broker: see :func:`gdrpy.connect`."""
    for name, value in (("timeout", timeout), ("reconnect", reconnect)):
        seconds = as_seconds("connect", name, value)
        if seconds == math.inf or (seconds == 0 and name == "timeout"):
            raise ValueError(f"connect: {name} must be a number of seconds, not {value!r}")
    path = connect_path() if socket is None else as_path("connect", "socket", socket)
    if len(os.fsencode(path)) >= PATH_ROOM:
        raise ValueError(
            f"connect: a socket's path has at most {PATH_ROOM - 1} bytes, and {path!r} has more: "
            f"choose a shorter one"
        )
    connection = Connection(make_transport(timeout), path, reconnect)
    try:
        await connection.open()
    except Silent:
        raise Timeout(
            f"connect: the broker at {path} did not answer within {timeout:g} s: give it more by "
            f"timeout="
        ) from None
    except Lost as lost:
        raise BrokerUnavailable(
            f"connect: no broker answers at {path} ({lost}): start one by `gdrpy serve`, or say by "
            f"socket= or {VARIABLE} where it is"
        ) from None
    return connection
