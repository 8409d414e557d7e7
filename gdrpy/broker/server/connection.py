"""Clients' connections in the loop: unsent packets, watched names, descriptors in flight."""

from __future__ import annotations

import errno
import fcntl
import itertools
import resource
import socket
import struct
import termios
import time
from collections import deque
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gdrpy._core import _packet
from gdrpy.broker.requests import Watch
from gdrpy.broker.server.rights import Identity
from gdrpy.broker.server.table import RegionEntry, Session

#: Packets that a watcher, or all watchers of a user, may leave unread before events are dropped.
EVENTS_LIMIT = 1024
#: Malformed packets that a connection may send in a row before it is closed.
NONSENSE_LIMIT = 16
#: A packet's overhead in bytes, rounded up: in the outbox, and in the kernel.
_KEPT_BYTES, _SENT_BYTES = 256, 1024
#: Bytes of unread packets that the kernel keeps for a connection: net.core.wmem_default and one.
_SENT_LIMIT = 320 * 1024
#: Descriptors that one connection may always leave unread: two packets full of them.
_CONNECTION_FDS = 506
#: Descriptors of each user for which the last ones are kept.
_FIRST = 8
#: Connections of a user that are checked at a time, and for each of them the seconds until the next
#: check, which takes a fiftieth of that.
_SLICE, _PAUSE = 64, 5e-5


@dataclass(eq=False, slots=True)
class User:
    """The shared state of one user's connections."""

    uid: int
    #: In order of arrival.
    connections: dict[ServerConnection, None] = field(default_factory=dict)
    watchers: dict[ServerConnection, None] = field(default_factory=dict)
    #: Bytes kept for these connections: unread packets and requests under way.
    owed: int = 0
    #: Whether the connections with the most unread bytes are being closed.
    relieved: bool = False
    #: Descriptors in flight, and their receivers in order of their last check.
    in_flight: int = 0
    receivers: dict[ServerConnection, None] = field(default_factory=dict)
    #: When receivers may be checked again.
    next_look: float = 0.0
    #: Events that its watchers have not all got yet.
    events: deque[Notification] = field(default_factory=deque)


@dataclass(eq=False, slots=True)
class Notification:
    """An event for a user's watchers, which get it in turns."""

    number: int
    #: None stands for dropped events.
    packet: bytes | None
    region: RegionEntry | None
    #: For the end of a bound region, the processes that hold it.
    holders: Container[int] | None = None
    #: The watchers that have not got it yet; None before the first.
    left: Iterator[ServerConnection] | None = None


@dataclass(eq=False, slots=True)
class ServerConnection:
    """A client. ``outbox`` holds packets that the kernel has not taken yet."""

    sock: socket.socket
    identity: Identity
    flight: Flight
    user: User
    #: Of the descriptor, and of the identity.
    number: int = -1
    uid: int = -1
    #: Descriptors sent since the client had last read everything.
    in_flight: int = 0
    #: Whether the outbox must wait until the client, or other clients of its user, read.
    waiting: bool = False
    open: bool = True
    #: Whether the client is gone, so that sending is pointless.
    ended: bool = False
    #: None until its hello.
    session: Session | None = None
    outbox: deque[tuple[bytes, Sequence[int]]] = field(default_factory=deque)
    #: The events that it watches, and the number of the first one.
    watching: Watch | None = None
    since: int = 0
    #: Whether events were dropped since its last "lost" event.
    lost: bool = False
    #: Whether a thread works on its request.
    busy: bool = False
    #: Its last request, and the rest of the work on it.
    request: Any = None
    work: Iterator[Any] | None = None
    #: Whether it waits for a turn, and its epoll mask.
    queued: bool = False
    mask: int = 0
    #: Malformed packets since the last request.
    nonsense: int = 0
    #: Bytes in the outbox, sent since it had last read everything, and of its request.
    kept: int = 0
    sent: int = 0
    asked: int = 0

    def __post_init__(self) -> None:
        self.number, self.uid = self.sock.fileno(), self.identity.uid

    def send(self, packet: bytes, fds: Sequence[int]) -> bool:
        """Send, or keep for later; returns whether it was sent. Raises OSError for a lost client.

        The descriptors stay open until they are sent: the session has leases on their regions, and
        can return none while its requests are not read.
        """
        if not self.outbox and self._sent(packet, fds):
            return True
        self.outbox.append((packet, fds))
        self.kept += len(packet) + _KEPT_BYTES
        self.user.owed += len(packet) + _KEPT_BYTES
        return False

    def flush(self) -> bool:
        """Send the outbox; returns whether it is empty. Raises OSError."""
        while self.outbox:
            packet, fds = self.outbox[0]
            if not self._sent(packet, fds):
                return False
            self.outbox.popleft()
            self.kept -= len(packet) + _KEPT_BYTES
            self.user.owed -= len(packet) + _KEPT_BYTES
        return True

    def _sent(self, packet: bytes, fds: Sequence[int]) -> bool:
        if fds and not self.flight.take(self, len(fds)):
            self.waiting = True
            return False
        self.waiting = False
        try:
            _packet.send(self.number, packet, fds)
        except OSError as error:
            if fds:
                self.flight.give_back(self, len(fds))
            if error.errno == errno.ETOOMANYREFS:
                self.waiting = True  # other programs of this user leave descriptors unread too
            elif not isinstance(error, BlockingIOError):
                raise
            return False
        if self.sent < _SENT_LIMIT:
            size = len(packet) + _SENT_BYTES
            self.sent += size
            self.user.owed += size
        return True

    def ask(self, nbytes: int) -> None:
        """Count ``nbytes`` for the request under way; 0 when it is done."""
        self.user.owed += nbytes - self.asked
        self.asked = nbytes

    @property
    def owed(self) -> int:
        """Bytes kept for the connection."""
        return self.kept + self.sent + self.asked

    def settle(self) -> None:
        """Stop counting sent packets, if the client has read them."""
        if self.sent and not self.unread():
            self.user.owed -= self.sent
            self.sent = 0

    def forget(self) -> None:
        """Drop everything kept for the connection, which is closed."""
        self.user.owed -= self.owed
        self.kept = self.sent = self.asked = 0
        self.outbox.clear()
        self.work = self.request = None

    def unread(self) -> int:
        """Bytes that the client has not read, as the kernel counts them."""
        found = fcntl.ioctl(self.sock, termios.TIOCOUTQ, struct.pack("i", 0))
        return int(struct.unpack("i", found)[0])


class Flight:
    """Limits descriptors in flight: sent, but not read yet. A user's connections may have half of
    the kernel's limit, one connection a quarter of that, and all users together what leaves some
    for each user's first ones, and for the keeper.

    The kernel lets a user have as many in flight as a process may have files (unix(7),
    ETOOMANYREFS). A descriptor stays in flight until its receiver reads it or is gone, whatever the
    sender does. So clients that do not read must not use up the broker's share. A connection that
    has read everything may always be sent one, unless all users together have too many.
    """

    def __init__(self) -> None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._of_user = limit // 2
        self._share = max(_CONNECTION_FDS, limit // 8)
        #: Of all users; and of all when a user may have only the first ones.
        self._of_all = limit - min(512, limit // 8)
        self._of_most = self._of_all - min(1024, limit // 8)
        #: Stands for all users.
        self._all = User(-1)

    def take(self, receiver: ServerConnection, count: int) -> bool:
        """Count ``count`` more for a connection if they may be sent now; returns whether."""
        if not (self._fits(receiver, count) or self.admits(receiver, count)):
            return False
        user, every = receiver.user, self._all
        if not receiver.in_flight:
            user.receivers[receiver] = every.receivers[receiver] = None
        receiver.in_flight += count
        user.in_flight += count
        every.in_flight += count
        return True

    def admits(self, receiver: ServerConnection, count: int) -> bool:
        """Whether ``count`` more may be sent to a connection now."""
        if self._fits(receiver, count):
            return True
        if receiver.in_flight and not receiver.unread():
            self.forget(receiver)
        self._look_at(receiver.user)
        if self._all.in_flight + count > self._of_most:
            self._look_at(self._all)
        return self._fits(receiver, count)

    def _look_at(self, user: User) -> None:
        """Check some of a user's connections, few enough not to delay others, and forget those
        that have read everything.
        """
        now = time.monotonic()
        if now < user.next_look:
            return
        some = list(itertools.islice(user.receivers, _SLICE))
        user.next_look = now + len(some) * _PAUSE
        for receiver in some:
            if receiver.unread():
                user.receivers[receiver] = user.receivers.pop(receiver)
            else:
                self.forget(receiver)

    def _fits(self, receiver: ServerConnection, count: int) -> bool:
        used = receiver.user.in_flight + count
        most = self._of_most if used > _FIRST else self._of_all
        if self._all.in_flight + count > most:
            return False
        if receiver.in_flight + count <= self._share and used <= self._of_user:
            return True
        return receiver.in_flight == 0 and (count == 1 or used == count)

    def give_back(self, receiver: ServerConnection, count: int) -> None:
        """Stop counting ``count`` that were not sent."""
        receiver.in_flight -= count
        receiver.user.in_flight -= count
        self._all.in_flight -= count

    def forget(self, receiver: ServerConnection) -> None:
        """Stop counting for a connection that has read everything or is gone."""
        self.give_back(receiver, receiver.in_flight)
        receiver.user.receivers.pop(receiver, None)
        self._all.receivers.pop(receiver, None)
