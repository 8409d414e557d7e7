"""One connection to a broker: hello, requests, and recovery when the broker is restarted."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from msgspec import UNSET

from gdrpy._core import _mapping
from gdrpy._core._mapping import Descriptor, run
from gdrpy.broker import replies, requests
from gdrpy.broker.client.transport import (
    SESSIONS_LIMIT,
    BlockingTransport,
    Descriptors,
    Lost,
    Packet,
    Silent,
    Transport,
    Unread,
)
from gdrpy.broker.protocol import BATCH_LIMIT, VERSION
from gdrpy.broker.replies import Grant, Grants, Refusal, Reply
from gdrpy.broker.requests import Request, call_of
from gdrpy.errors import (
    BrokerUnavailable,
    Closed,
    Error,
    Gone,
    InvalidRequest,
    ProtocolError,
    Timeout,
)

R = TypeVar("R", bound=Reply | replies.Description)

#: Seconds between attempts to reach a broker that went away: doubled from the first to the last.
_FIRST_PAUSE, _LAST_PAUSE = 0.005, 0.25
#: The refusal of a repeated request whose first copy was carried out.
_DONE_BEFORE: dict[type[Request], str] = {requests.Delete: "NotFound"}


class Lease(_mapping.Lease):
    """A grant that this process holds; returned when it is closed or no longer referenced."""

    __slots__ = ()

    @property
    def socket(self) -> str:
        """The path of the broker's socket."""
        path: str = self._connection.path
        return path

    @property
    def writable(self) -> bool:
        """Whether the memory may be written; False after the lease was returned."""
        entry = self._entry
        return entry is not None and entry[1]

    @property
    def lost(self) -> bool:
        """Whether the broker no longer knows it, or it was returned."""
        return self._entry is None

    def sleeper(self) -> Lease:
        """A lease that counts the region as asleep until it is closed.

        It has no memory: its region is the complement of the number.
        """
        sleeper = Lease(self._connection, ~self.region, False, False)
        self._connection.drowsy.append(self.region)
        return sleeper


#: A grant's descriptor, None if it did not arrive, and its lease. Dropping them closes both.
Parcel = tuple[Descriptor | None, Lease]
Parcels = list[Parcel]


class Connection:
    """Requests to the broker at ``path``, one at a time: the caller holds the transport's lock.

    If the broker goes away, the connection looks for one for up to ``reconnect`` seconds, resumes
    the leases, and repeats the request.

    An exception, as by Ctrl-C, may end a call at any point. So nothing that must happen is left to
    exception handlers. Leases and descriptors, which are C objects, own every grant and return it.
    From before a packet is sent until its outcome is known, the connection is not settled. The next
    call on an unsettled connection connects again and resumes the existing leases; the broker then
    releases the grants that no lease received.
    """

    _finalizing = staticmethod(sys.is_finalizing)

    def __init__(self, transport: Transport, path: str, reconnect: float) -> None:
        self.transport = transport
        self.path = path
        #: The identity of the broker's state: 32 hexadecimal digits.
        self.life = ""
        #: Region, writable and gpu of each lease, by the key of its object.
        self.leases: dict[int, tuple[int, bool, bool]] = {}
        #: Returned regions that the broker has not been told of, by the same keys.
        self.returned: dict[int, int] = {}
        #: Regions that fell asleep, of which the broker has not been told.
        self.drowsy: list[int] = []
        self.reconnect = reconnect
        self._closed = False
        #: Whether a connected transport has done hello and resume, and no request is under way.
        self._settled = False
        #: The sessions that may hold our leases. The last is the transport's if it is ``_greeted``.
        #: There are several while a resume has no reply.
        self._sessions: list[int] = []
        self._greeted = False
        #: Whether a session was resumed on this connection.
        self._moved = False
        #: Whether these sessions may hold leases.
        self._granting = False
        self._last_id = 0

    @property
    def ready(self) -> bool:
        """Whether it is connected, and no call was interrupted."""
        return self.transport.connected and self._settled

    async def open(self) -> None:
        """Connect, once. Raises Lost, Silent, PermissionDenied, ProtocolError, Closed."""
        if self._closed:
            raise Closed(f"the connection to the broker at {self.path} is closed: connect() again")
        self._break_off()
        self._greeted = False
        await self.transport.connect(self.path)
        try:
            hello = requests.Hello(VERSION, "gdrpy", id=0)
            welcome, _ = accepted(await self._exchange(hello, replies.Welcome))
            if welcome.version != VERSION:
                raise ProtocolError(
                    f"the broker at {self.path} speaks version {welcome.version} of the "
                    f"protocol, and this client version {VERSION}: install the same gdrpy on both "
                    f"sides"
                )
            if welcome.life is UNSET or welcome.session is UNSET:
                raise ProtocolError("hello: the broker's reply has no life or no session")
            await self._resume(welcome.life, welcome.session)
        except BaseException:
            self._break_off()
            raise
        self.transport.forget()
        self._settled = True

    async def _resume(self, life: str, session: int) -> None:
        """Resume the leases of this life from the sessions that may hold them, and end these."""
        if life != self.life:
            self.leases.clear()
            self._sessions = []
            self.life = life
        before = self._sessions[1 - SESSIONS_LIMIT :] if self._granting else []
        self._sessions = [*before, session]
        self._greeted = True
        self._moved = False
        missing = self.leases.copy()
        self.drowsy.clear()  # the resume tells of them
        for key in list(self.returned):
            if key not in missing:  # a lease returned just now is resumed first
                self.returned.pop(key, None)
        for number in before:
            missing = await self._resume_from(number, missing)
            self._sessions = self._sessions[1:]  # it has ended
        for key in missing:
            self.leases.pop(key, None)
        self._sessions = [session]
        self._granting = bool(self.leases or self.returned)

    async def _resume_from(
        self, session: int, leases: dict[int, tuple[int, bool, bool]]
    ) -> dict[int, tuple[int, bool, bool]]:
        """Resume these leases of a session, which ends; returns those that it did not have."""
        lost: set[int] = set()
        wanted = list(leases.values())
        for first in range(0, len(wanted) or 1, BATCH_LIMIT):
            batch = wanted[first : first + BATCH_LIMIT]
            more = first + BATCH_LIMIT < len(wanted)
            held = [lease for lease in batch if lease[0] >= 0]
            asleep = [~lease[0] for lease in batch if lease[0] < 0]
            request = requests.Resume(session, held, asleep, more, id=0)
            answer = await self._exchange(request, replies.Resumed)
            try:
                resumed, _ = accepted(answer)
            except InvalidRequest:  # this process has become another user's
                return leases
            except Error:
                if not self._moved:  # the new session is in vain: its leases are copies
                    self._sessions = self._sessions[:-1]
                    self._greeted = False
                raise
            lost.update(resumed.lost)
        self._moved = True
        return {key: lease for key, lease in leases.items() if lease[0] in lost}

    def close(self) -> None:
        """Disconnect for good, which ends every lease."""
        self._closed = True
        regions = [lease[0] for lease in self.leases.copy().values()]
        self.leases.clear()
        # Else a broker that cannot see this process waits for its end.
        regions += self.returned.copy().values()
        for first in range(0, len(regions), BATCH_LIMIT):
            batch = regions[first : first + BATCH_LIMIT]
            held = [region for region in batch if region >= 0]
            awake = [~region for region in batch if region < 0]
            self.transport.send_last(requests.encode(requests.Release(held, [], awake)))
        self.transport.close()

    async def ask(
        self,
        request: Request,
        kind: type[R],
        leases: Sequence[Lease] = (),
        perhaps_done: bool = False,
    ) -> tuple[R, Parcels]:
        """The reply to a request, of this kind. A request about a lost lease's region is not sent:
        its number may be that of another region.

        Raises the broker's refusal, Gone, Timeout, BrokerUnavailable, ProtocolError. A timeout
        drops the connection, because the reply may still come.
        """
        deadline: float | None = None
        pause = 0.0
        while True:
            asked = False
            try:
                if not (self._settled and self.transport.connected):
                    await self.open()
                if self.returned:
                    self._send_returned(self.transport.send_patiently)
                for lease in leases:
                    if not self._holds(lease):
                        raise self._lost_lease(request, lease)
                asked = True
                self._granting |= type(request) in requests.GRANTS
                self._settled = False
                answer = await self._exchange(request, kind)
                self._settled = True
                if perhaps_done and _was_done_before(request, answer):
                    return cast(R, Reply()), []
                return accepted(answer)
            except Silent:
                raise self._timeout(request) from None
            except Lost as lost:
                perhaps_done |= asked and not isinstance(lost, Unread)
                now = time.monotonic()
                if deadline is None:
                    deadline = now + self.reconnect
                elif now >= deadline:
                    raise BrokerUnavailable(
                        f"{call_of(request)}: the broker at {self.path} went away and did not "
                        f"come back within {self.reconnect:g} s ({lost}): start it by `gdrpy serve`"
                    ) from None
            await self.transport.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE) or _FIRST_PAUSE

    def ask_now(
        self,
        request: Request,
        kind: type[R],
        leases: Sequence[Lease],
        transport: BlockingTransport,
    ) -> tuple[R, Parcels]:
        """As :meth:`ask`, without a coroutine in the common case.

        The transport's lock is held.
        """
        if (
            kind is Grants  # which may be several packets
            or not self._settled
            or not transport.connected
            or self.returned
            or (leases and not all(map(self._holds, leases)))
        ):
            return run(self.ask, request, kind, leases)
        request.id = self._last_id = self._last_id + 1
        packet = requests.encode(request)
        self._granting |= type(request) in requests.GRANTS
        self._settled = False
        try:
            answer = self._accept(transport.exchange_now(packet), request, kind)
        except Lost as lost:
            transport.hang_up()
            perhaps_done = not isinstance(lost, Unread)
        except Silent:
            self._break_off()
            raise self._timeout(request) from None
        except BaseException:
            self._break_off()
            raise
        else:
            self._settled = True
            return accepted(answer)
        return run(self.ask, request, kind, leases, perhaps_done)

    def _holds(self, lease: Lease) -> bool:
        """Whether the broker still knows a lease."""
        return not lease.lost and lease.life == self.life

    def _timeout(self, request: Request) -> Timeout:
        return Timeout(
            f"{call_of(request)}: the broker at {self.path} did not answer within "
            f"{self.transport.timeout:g} s"
        )

    def _break_off(self) -> None:
        """Stop waiting for a reply. The broker notices only after the leases were resumed."""
        self._settled = False
        if self._greeted and self.leases:
            self.transport.leave()
        else:
            self.transport.hang_up()
        if not self.leases:
            self.transport.forget()

    def _lost_lease(self, request: Request, lease: Lease) -> Error:
        return Gone(
            f"{call_of(request)}: region {lease.region} was lost when the broker at {self.path} "
            f"was restarted, or closed the connection: its memory stays usable here until it is "
            f"closed"
        )

    async def _exchange(self, request: Request, kind: type[R]) -> tuple[R | Refusal, Parcels]:
        """The reply to a request or its refusal, joined if it comes in several packets."""
        request.id = self._last_id = self._last_id + 1
        packet = requests.encode(request)
        parcels: Parcels = []
        try:
            reply, parcels = self._accept(await self.transport.exchange(packet), request, kind)
            while isinstance(reply, Grants) and reply.more:
                part, its = self._accept(await self.transport.receive(), request, Grants)
                parcels += its
                its.clear()  # an error's traceback must not keep them
                if isinstance(part, Refusal):
                    return part, parcels
                reply.grants += part.grants
                reply.more = part.more
                assert isinstance(request, requests.GetMany)
                asked = requests.count_of(request)
                if len(reply.grants) > asked or (part.more and not part.grants):
                    raise ProtocolError("get_many: the broker's replies do not end")
        except BaseException as error:
            parcels.clear()
            if isinstance(error, Lost):
                self.transport.hang_up()
            else:
                self._break_off()
            raise
        return reply, parcels

    def _accept(
        self, packet: Packet, request: Request, kind: type[R]
    ) -> tuple[R | Refusal, Parcels]:
        """The reply in a packet, which must belong to this request. Raises ProtocolError."""
        data, fds = packet
        try:
            reply = replies.decode(type(request), kind, data)
            told = 0 if type(reply) is Refusal else reply.fds
            if reply.id != request.id:
                if type(reply) is Refusal and not reply.id:  # the connection is refused
                    raise replies.error_of(reply)
                raise ProtocolError(
                    f"{call_of(request)}: a reply to request {reply.id} came to request "
                    f"{request.id}"
                )
            if fds is None:
                fds = [None] * told
            elif told != len(fds):
                raise ProtocolError(
                    f"{call_of(request)}: the reply tells of {told} descriptors, and {len(fds)} "
                    f"came"
                )
            if not fds and type(request) not in requests.GRANTS:
                return reply, []
            return reply, self._parcels(reply, request, fds)
        except BaseException:
            if fds is not None:
                fds.clear()
            raise

    def _parcels(self, reply: Any, request: Any, fds: Descriptors) -> Parcels:
        """A lease for each grant, with its descriptor. Raises ProtocolError if one is missing."""
        if type(reply) is Grant and len(fds) == 1:
            return [(fds[0], Lease(self, reply.region, not reply.readonly, request.gpu))]
        single = [reply] if type(reply) is Grant else []
        grants = reply.grants if type(reply) is Grants else single
        if len(grants) != len(fds):
            raise ProtocolError(
                f"{call_of(request)}: {len(grants)} grants came with {len(fds)} descriptors"
            )
        return [
            (fd, Lease(self, grant.region, not grant.readonly, request.gpu))
            for fd, grant in zip(fds, grants, strict=True)
        ]

    def flush(self) -> None:
        """Tell the broker which regions were returned, if that takes no waiting.

        Any thread may call this, also from the garbage collector in the middle of a request. A
        thread that held the lock calls it again after releasing it.
        """
        if self._finalizing():
            return
        while self.returned and self.transport.try_alone(self._send_returned):
            pass

    def flush_patiently(self) -> None:
        """As :meth:`flush`, but wait for a broker that is busy, up to the timeout.

        Not for finalizers.
        """
        while self.returned and self.transport.try_alone(self._send_returned_patiently):
            pass

    def _send_returned_patiently(self) -> bool:
        try:
            return self._send_returned(self.transport.send_patiently)
        except Lost:
            self.transport.hang_up()
        except Silent:
            self._break_off()
        return False

    def close_leases(self, leases: list[Lease]) -> None:
        """Close leases, and have the next :meth:`flush` tell the broker, if no call runs."""

        def close() -> bool:
            for lease in leases:
                lease.close()
            return True

        if not self.transport.try_alone(close):
            close()

    def _send_returned(self, send: Callable[..., bool] | None = None) -> bool:
        """Send all returned regions, with the lock held; returns whether the socket took them.

        First those that fell asleep, since the broker may forget a region that is returned.
        """
        while self.returned:
            if not self._settled:  # an interrupted call: its grants are not known
                self._break_off()
                return False
            asleep = self.drowsy[:BATCH_LIMIT]
            keys = [] if asleep else list(self.returned)[:BATCH_LIMIT]
            regions = list(map(self.returned.__getitem__, keys))
            held = [region for region in regions if region >= 0]
            awake = {~region for region in regions if region < 0}
            if awake:
                awake -= {~lease[0] for lease in list(self.leases.values())}
            packet = requests.encode(requests.Release(held, asleep, [*awake]))
            self._settled = False
            sent = (send or self.transport.send_now)(packet, self.flush)
            if sent:
                del self.drowsy[: len(asleep)]
                for key in keys:
                    del self.returned[key]
            self._settled = True
            if not sent:
                return False
        return True


def accepted(answer: tuple[R | Refusal, Parcels]) -> tuple[R, Parcels]:
    """The reply. Raises the error of a refusal."""
    reply, parcels = answer
    if type(reply) is Refusal:
        parcels.clear()
        raise replies.error_of(reply)
    return reply, parcels


def _was_done_before(request: Request, answer: tuple[object, Parcels]) -> bool:
    """Whether a repeated request is refused because its first copy was carried out."""
    reply, _ = answer
    return isinstance(reply, Refusal) and reply.error == _DONE_BEFORE.get(type(request))
