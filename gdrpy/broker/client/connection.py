"""One connection to a broker: hello, exchanges, and going on after the broker was restarted."""

from __future__ import annotations

import sys
import time

from gdrpy._unix import NO_FD, close_all
from gdrpy.broker.client.channel import Lost, Silent
from gdrpy.broker.client.replies import WELCOME, check, decode_reply, grants_of
from gdrpy.broker.protocol import (
    BATCH_LIMIT,
    FDS_LIMIT,
    VERSION,
    encode,
    error_of,
    packer,
)
from gdrpy.errors import (
    BrokerUnavailable,
    Closed,
    Error,
    Gone,
    InvalidRequest,
    NotFound,
    ProtocolError,
    Timeout,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gdrpy.broker.client.channel import BlockingChannel, Channel, Descriptors, Packet

    Message = dict[str, Any]
    #: A reply and its descriptors, which are the receiver's to close. Each grant has its ``lease``.
    Reply = tuple[Message, Descriptors]

#: Seconds between attempts to reach a broker that went away: doubled from the first to the last.
_FIRST_PAUSE, _LAST_PAUSE = 0.005, 0.25
#: What a repeated request is refused with after the first one was carried out.
_DONE_BEFORE = {"delete": NotFound}


class Lease:
    """A grant that this process holds; given back when it is closed, or nobody refers to it."""

    __slots__ = ("_connection", "life", "region")

    def __init__(self, connection: Connection, region: int, writable: bool, gpu: bool) -> None:
        self._connection = connection
        self.region = region
        self.life = connection.life
        connection.leases[id(self)] = (region, writable, gpu)

    @property
    def socket(self) -> str:
        """The path of the broker's socket."""
        return self._connection.path

    @property
    def writable(self) -> bool:
        """Whether the memory may be written; not when it was given back."""
        _, writable, _ = self._connection.leases.get(id(self), (0, False, False))
        return bool(writable)

    @property
    def lost(self) -> bool:
        """Whether the broker knows it no more, or it was given back."""
        return id(self) not in self._connection.leases

    def close(self) -> None:
        """Give it back; never waits. May be called again."""
        connection = self._connection
        if connection.leases.pop(id(self), None) is not None:
            connection.returned.append(self.region)
            connection.flush()

    def __del__(self) -> None:
        if not sys.is_finalizing() and hasattr(self, "life"):
            self.close()


class Connection:
    """Requests to the broker at ``path``, one at a time: who asks holds the channel's lock.

    When the broker goes away it is sought for up to ``reconnect`` seconds, the leases are resumed,
    and the request is repeated.
    """

    def __init__(self, channel: Channel, path: str, reconnect: float) -> None:
        self.channel = channel
        self.path = path
        #: 32 hexadecimal digits that stand for the broker's state.
        self.life = ""
        #: What hello answered.
        self.server: Message = {}
        #: Region, writable, gpu of each lease, by the identity of its object.
        self.leases: dict[int, tuple[int, bool, bool]] = {}
        #: Regions given back that the broker has not been told of.
        self.returned: list[int] = []
        self.reconnect = reconnect
        self._closed = False
        #: Whether the channel, when it is connected, is past hello and resume.
        self._opened = False
        #: The sessions that may hold our leases: more than one while a resume was not answered.
        self._sessions: list[int] = []
        self._last_id = 0
        self._pack = packer()
        #: Whether the request being made was sent before, to a broker that did not answer it.
        self._repeated = False

    async def open(self) -> None:
        """Connect, once. Raises Lost, Silent, PermissionDenied, ProtocolError, Closed."""
        if self._closed:
            raise Closed(f"the connection to the broker at {self.path} is closed")
        await self.channel.connect(self.path)
        self._opened = False
        try:
            self.server, _ = await self._exchange(
                {"op": "hello", "version": VERSION, "client": "gdrpy"}
            )
            if self.server["version"] != VERSION:
                raise ProtocolError(
                    f"the broker at {self.path} speaks version {self.server['version']} of the "
                    f"protocol, this client version {VERSION}: use one gdrpy on both ends"
                )
            check("hello", self.server, WELCOME)
            await self._resume(self.server["life"], self.server["session"])
        except BaseException:
            self.channel.hang_up()
            raise
        self._opened = True
        self.channel.forget()

    async def _resume(self, life: str, session: int) -> None:
        """Get back the leases that live, from the sessions that may hold them."""
        if life != self.life:
            self.life = life
            self._sessions = []
        before, self._sessions = self._sessions, [*self._sessions, session]
        self.returned.clear()
        missing = self.leases.copy()
        for number in before:
            if missing:
                missing = await self._resume_from(number, missing)
        for key in missing:
            self.leases.pop(key, None)
        self._sessions = [session]

    async def _resume_from(
        self, session: int, leases: dict[int, tuple[int, bool, bool]]
    ) -> dict[int, tuple[int, bool, bool]]:
        """Resume these leases of a session; those that were not found there."""
        lost: set[int] = set()
        wanted = list(leases.values())
        for first in range(0, len(wanted), BATCH_LIMIT):
            batch = wanted[first : first + BATCH_LIMIT]
            request: Message = {"op": "resume", "session": session, "leases": batch}
            if first + BATCH_LIMIT < len(wanted):
                request["more"] = True
            try:
                reply, _ = await self._exchange(request)
            except InvalidRequest:  # this process has become another user's
                return leases
            lost.update(reply["lost"])
        return {key: lease for key, lease in leases.items() if lease[0] in lost}

    def close(self) -> None:
        """Disconnect for good, which gives back every lease."""
        self._closed = True
        self.leases.clear()
        self.channel.close()

    async def ask(self, request: Message, lease: Lease | None = None) -> Reply:
        """The reply to a request; one about the region of a lease is not sent once it is lost.

        Raises what the broker answers, Gone, Timeout, BrokerUnavailable, ProtocolError. After a
        timeout the connection is dropped: the reply may still come.
        """
        sent = False
        deadline: float | None = None
        pause = 0.0
        while True:
            try:
                if not self.channel.connected:
                    await self.open()
                if self.returned:
                    self._send_returned()
                if lease is not None and (lease.lost or lease.life != self.life):
                    raise self._lost_lease(request, lease)
                self._repeated, sent = sent, True
                return await self._exchange(request)
            except Silent:
                raise self._timeout(request) from None
            except Lost as lost:
                now = time.monotonic()
                if deadline is None:
                    deadline = now + self.reconnect
                elif now >= deadline:
                    raise BrokerUnavailable(
                        f"{request['op']}: the broker at {self.path} went away and did not come "
                        f"back within {self.reconnect:g} s ({lost}): start it by `gdrpy serve`"
                    ) from None
            await self.channel.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE) or _FIRST_PAUSE

    def ask_now(self, request: Message, channel: BlockingChannel) -> Reply | None:
        """The reply to a request for one region where nothing is in the way, else None.

        What :meth:`ask` does when all is well, in a plain call. The channel's lock is held.
        """
        if not channel.connected or self.returned:
            return None
        request["id"] = self._last_id = self._last_id + 1
        packet = encode(request, self._pack)
        try:
            message, fds = self._accept(channel.exchange_now(packet), request)
        except Lost:
            channel.hang_up()
            return None
        except Silent:
            self._break_off()
            raise self._timeout(request) from None
        except BaseException:
            self._break_off()
            raise
        if "error" in message:
            close_all(fds)
            raise error_of(message)
        return message, fds

    def _timeout(self, request: Message) -> Timeout:
        return Timeout(
            f"{request['op']}: the broker at {self.path} did not answer within "
            f"{self.channel.timeout:g} s"
        )

    def _break_off(self) -> None:
        """Wait for no reply any more. The broker is not to notice before our leases are resumed."""
        if self._opened and self.leases:
            self._opened = False
            self.channel.leave()
        else:
            self.channel.hang_up()

    def _lost_lease(self, request: Message, lease: Lease) -> Error:
        return Gone(
            f"{request['op']}: region {lease.region} was lost when the broker at {self.path} was "
            f"restarted, or closed the connection: its memory stays usable here until it is closed"
        )

    async def _exchange(self, request: Message) -> Reply:
        """The reply to a request, put together if it comes in several packets."""
        request["id"] = self._last_id = self._last_id + 1
        packet = encode(request, self._pack)
        try:
            message, fds = self._accept(await self.channel.exchange(packet), request)
            if request["op"] == "get_many" and message.get("more") and "error" not in message:
                await self._collect(message, fds, request)
        except Lost:
            self.channel.hang_up()
            raise
        except BaseException:
            self._break_off()
            raise
        if "error" in message:
            close_all(fds)
            error = error_of(message)
            if self._repeated and isinstance(error, _DONE_BEFORE.get(request["op"], ())):
                return {}, []
            raise error
        return message, fds

    async def _collect(self, message: Message, fds: Descriptors, request: Message) -> None:
        """Add to a reply the packets that it goes on with."""
        try:
            more = True
            while more:
                part, its = self._accept(await self.channel.receive(), request)
                fds += its
                if "error" in part:
                    message |= part
                    return
                message["grants"] += part["grants"]
                more = part["more"]
        except BaseException:
            close_all(fds)
            raise

    def _accept(self, packet: Packet, request: Message) -> Reply:
        """What a packet says that must be the reply to a request. Raises ProtocolError."""
        data, fds = packet
        try:
            message = decode_reply(request["op"], data)
            if message.get("id") != request["id"]:
                if "error" in message and not message.get("id"):  # of no request: the connection
                    raise error_of(message)
                raise ProtocolError(
                    f"{request['op']}: a reply to request {message.get('id')!r:.80} came to "
                    f"request {request['id']}"
                )
            told = message.get("fds", 0)
            if type(told) is not int or not 0 <= told <= FDS_LIMIT:
                raise ProtocolError(f"{request['op']}: the reply tells of {told!r:.80} descriptors")
            if fds is None:
                fds = [NO_FD] * told
            elif told != len(fds):
                raise ProtocolError(
                    f"{request['op']}: the reply tells of {told} descriptors, and {len(fds)} came"
                )
            if "error" not in message:
                self._take_leases(message, request, told)
        except BaseException:
            close_all(fds or [])
            raise
        return message, fds

    def _take_leases(self, message: Message, request: Message, told: int) -> None:
        """Have a lease in each grant, which must be as many as the descriptors."""
        grants = grants_of(request["op"], message)
        if len(grants) != told:
            raise ProtocolError(f"{len(grants)} grants came with {told} descriptors")
        for grant in grants:
            grant["lease"] = Lease(self, grant["region"], not grant["readonly"], request["gpu"])

    def flush(self) -> None:
        """Tell which regions were given back, if that can be done without waiting.

        Called in any thread, by the garbage collector too: even by one that asks just now. Who
        holds the lock calls it again when it has let go.
        """
        while self.returned and self.channel.try_alone(self._send_returned):
            pass

    def _send_returned(self) -> bool:
        """With the lock held; whether there was room for all of it."""
        while self.returned:
            batch = self.returned[:BATCH_LIMIT]
            if not self.channel.send_now(encode({"op": "release", "regions": batch})):
                return False
            del self.returned[: len(batch)]
        return True
