"""A client's connection in the loop: its unsent packets, and the names that it watches."""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
import termios
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from gdrpy._core import _packet
from gdrpy.broker.server.flight import Flight
from gdrpy.broker.server.rights import Identity
from gdrpy.broker.server.table import RegionEntry, Session

#: Packets that a watcher, or all watchers of a user, may leave unread before events are dropped.
EVENTS_LIMIT = 256
#: Malformed packets that a connection may send in a row before it is closed.
NONSENSE_LIMIT = 16
#: A packet's overhead in bytes, rounded up: in the outbox, and in the kernel.
_KEPT_BYTES, _SENT_BYTES = 256, 1024
#: Bytes of unread packets that the kernel keeps for a connection: net.core.wmem_default and one.
_SENT_LIMIT = 320 * 1024


class User:
    """The shared state of one user's connections."""

    __slots__ = ("connections", "events", "owed", "relieved", "uid", "watchers")

    def __init__(self, uid: int) -> None:
        self.uid = uid
        #: In order of arrival.
        self.connections: dict[ServerConnection, None] = {}
        self.watchers: dict[ServerConnection, None] = {}
        #: Bytes kept for these connections: unread packets and requests under way.
        self.owed = 0
        #: Whether the connections with the most unread bytes are being closed.
        self.relieved = False
        #: Events that its watchers have not all got yet.
        self.events: deque[Notification] = deque()


class Notification:
    """An event for a user's watchers, which get it in turns."""

    __slots__ = ("left", "number", "packet", "region")

    def __init__(self, number: int, packet: bytes | None, region: RegionEntry | None) -> None:
        self.number = number
        #: None stands for dropped events.
        self.packet = packet
        self.region = region
        #: The watchers that have not got it yet; None before the first.
        self.left: Iterator[ServerConnection] | None = None


class ServerConnection:
    """A client. ``outbox`` holds packets that the kernel has not taken yet."""

    __slots__ = (
        "asked",
        "busy",
        "ended",
        "flight",
        "identity",
        "in_flight",
        "kept",
        "lost",
        "mask",
        "nonsense",
        "number",
        "open",
        "outbox",
        "queued",
        "request",
        "sent",
        "session",
        "since",
        "sock",
        "uid",
        "user",
        "waiting",
        "watching",
        "work",
    )

    def __init__(self, sock: socket.socket, identity: Identity, flight: Flight, user: User) -> None:
        self.sock = sock
        self.flight = flight
        self.user = user
        self.uid = identity.uid
        #: Descriptors sent since the client had last read everything.
        self.in_flight = 0
        #: Whether the outbox must wait until the client, or others of its user, read.
        self.waiting = False
        self.number = sock.fileno()
        self.identity = identity
        self.open = True
        #: Whether the client is gone, so that sending is pointless.
        self.ended = False
        #: None until its hello.
        self.session: Session | None = None
        self.outbox: deque[tuple[bytes, Sequence[int]]] = deque()
        #: The prefix of the names that it watches, and the number of its first event.
        self.watching: str | None = None
        self.since = 0
        #: Whether events were dropped since its last "lost" event.
        self.lost = False
        #: Whether a thread works on its request.
        self.busy = False
        #: Its last request, and the rest of the work on it.
        self.request: Any = None
        self.work: Iterator[Any] | None = None
        #: Whether it waits for a turn, and its epoll mask.
        self.queued = False
        self.mask = 0
        #: Malformed packets since the last request.
        self.nonsense = 0
        #: Bytes in the outbox, sent since it had last read everything, and of its request.
        self.kept = self.sent = self.asked = 0

    def is_open(self) -> bool:
        """Whether the connection is open."""
        return self.open

    def send(self, packet: bytes, fds: Sequence[int]) -> bool:
        """Send, or keep for later; returns whether it was sent. Raises OSError if the peer is gone.

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
        self.waiting = bool(fds) and not self.flight.admits(self, len(fds))
        if self.waiting:
            return False
        try:
            _packet.send(self.number, packet, fds)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                raise
            self.waiting = True  # clients of other users do not read either
            return False
        if fds:
            self.flight.note(self, len(fds))
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
