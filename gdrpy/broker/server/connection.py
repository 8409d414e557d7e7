"""A client's connection as the loop sees it: what is still to be sent, and what it watches."""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
import termios
from collections import deque
from collections.abc import Iterator
from typing import Any

from gdrpy._core import _packet
from gdrpy.broker.server.flight import Flight
from gdrpy.broker.server.rights import Identity
from gdrpy.broker.server.table import RegionEntry, Session

#: Packets that a watcher, or all watchers of a user, may leave unread before events are dropped.
EVENTS_LIMIT = 256
#: Packets without sense that a connection may send in a row before it is closed.
NONSENSE_LIMIT = 16
#: Bytes that a packet takes besides its own: where it is kept, and in the kernel. Rounded up.
_KEPT_BYTES, _SENT_BYTES = 256, 1024
#: Bytes that the kernel takes of a connection's unread packets: net.core.wmem_default, and one.
_SENT_LIMIT = 320 * 1024


class User:
    """What all connections of one user have together."""

    __slots__ = ("connections", "events", "owed", "relieved", "uid", "watchers")

    def __init__(self, uid: int) -> None:
        self.uid = uid
        #: In the order they came.
        self.connections: dict[ServerConnection, None] = {}
        self.watchers: dict[ServerConnection, None] = {}
        #: Bytes that are kept for these connections: what they have not read, what they asked for.
        self.owed = 0
        #: Whether those are being closed that leave most unread.
        self.relieved = False
        #: What its watchers are still to be told of.
        self.events: deque[Notification] = deque()


class Notification:
    """Something that a user's watchers are told of, each in its turn."""

    __slots__ = ("left", "number", "packet", "region")

    def __init__(self, number: int, packet: bytes | None, region: RegionEntry | None) -> None:
        self.number = number
        #: None: it stands for events that were dropped.
        self.packet = packet
        self.region = region
        #: Those that were not told yet; None before the first.
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
        #: Descriptors that were sent since it was last seen to have read everything.
        self.in_flight = 0
        #: Whether what is kept may not be sent before the client, or its user's others, read.
        self.waiting = False
        self.number = sock.fileno()
        self.identity = identity
        self.open = True
        #: Whether the client is gone: what it is still to be sent is for nobody.
        self.ended = False
        #: None until it has said hello.
        self.session: Session | None = None
        self.outbox: deque[tuple[bytes, list[int]]] = deque()
        #: The prefix of the names whose changes it is told of, and the first event that it hears.
        self.watching: str | None = None
        self.since = 0
        #: Whether events were dropped since it was last told so.
        self.lost = False
        #: Whether a thread works on its request.
        self.busy = False
        #: The request that it made last, and what is still to be done of it.
        self.request: Any = None
        self.work: Iterator[Any] | None = None
        #: Whether it has a turn to come, and what the loop hears of it.
        self.queued = False
        self.mask = 0
        #: Packets without sense since the last request.
        self.nonsense = 0
        #: Bytes in the outbox, in the kernel since it was last seen to have read, in the request.
        self.kept = self.sent = self.asked = 0

    def is_open(self) -> bool:
        """Whether the client is still there."""
        return self.open

    def send(self, packet: bytes, fds: list[int]) -> bool:
        """Send, or keep for later; whether it was sent. Raises OSError when the peer is gone.

        The descriptors stay open until then: the session has leases on what they show, and gives
        none back while its requests are not read.
        """
        if not self.outbox and self._sent(packet, fds):
            return True
        self.outbox.append((packet, fds))
        self.kept += len(packet) + _KEPT_BYTES
        self.user.owed += len(packet) + _KEPT_BYTES
        return False

    def flush(self) -> bool:
        """Send what was kept; whether nothing is left. Raises OSError."""
        while self.outbox:
            packet, fds = self.outbox[0]
            if not self._sent(packet, fds):
                return False
            self.outbox.popleft()
            self.kept -= len(packet) + _KEPT_BYTES
            self.user.owed -= len(packet) + _KEPT_BYTES
        return True

    def _sent(self, packet: bytes, fds: list[int]) -> bool:
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
            self.waiting = True  # other users' clients do not read either
            return False
        if fds:
            self.flight.note(self, len(fds))
        if self.sent < _SENT_LIMIT:
            size = len(packet) + _SENT_BYTES
            self.sent += size
            self.user.owed += size
        return True

    def ask(self, nbytes: int) -> None:
        """So many bytes are kept of a request under way; 0 when it is done."""
        self.user.owed += nbytes - self.asked
        self.asked = nbytes

    @property
    def owed(self) -> int:
        """Bytes that are kept for it."""
        return self.kept + self.sent + self.asked

    def settle(self) -> None:
        """Forget what was sent, if it has been read."""
        if self.sent and not self.unread():
            self.user.owed -= self.sent
            self.sent = 0

    def forget(self) -> None:
        """It is closed: nothing is kept for it."""
        self.user.owed -= self.owed
        self.kept = self.sent = self.asked = 0
        self.outbox.clear()
        self.work = self.request = None

    def unread(self) -> int:
        """Bytes, as the kernel counts them, that the client has not read."""
        found = fcntl.ioctl(self.sock, termios.TIOCOUTQ, struct.pack("i", 0))
        return int(struct.unpack("i", found)[0])
