"""A client's connection as the loop sees it: what is still to be sent, and what it watches."""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
import termios
from collections import deque

from gdrpy._core import _packet
from gdrpy.broker.server.flight import Flight
from gdrpy.broker.server.rights import Identity
from gdrpy.broker.server.table import Session

#: Packets that a watcher may leave unread before events are dropped.
EVENTS_LIMIT = 256
#: Packets without sense that a connection may send before it is closed.
NONSENSE_LIMIT = 16


class Connection:
    """A client. ``outbox`` holds packets that the kernel has not taken yet."""

    __slots__ = (
        "busy",
        "flight",
        "identity",
        "in_flight",
        "lost",
        "nonsense",
        "number",
        "open",
        "outbox",
        "session",
        "sock",
        "uid",
        "waiting",
        "watching",
    )

    def __init__(self, sock: socket.socket, identity: Identity, flight: Flight) -> None:
        self.sock = sock
        self.flight = flight
        self.uid = identity.uid
        #: Descriptors that were sent since it was last seen to have read everything.
        self.in_flight = 0
        #: Whether what is kept may not be sent before the client, or its user's others, read.
        self.waiting = False
        self.number = sock.fileno()
        self.identity = identity
        self.open = True
        #: None until it has said hello.
        self.session: Session | None = None
        self.outbox: deque[tuple[bytes, list[int]]] = deque()
        #: The prefix of the names whose changes it is told of.
        self.watching: str | None = None
        #: Whether events were dropped since it was last told so.
        self.lost = False
        #: Whether a thread works on its request.
        self.busy = False
        self.nonsense = 0

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
        return False

    def flush(self) -> bool:
        """Send what was kept; whether nothing is left. Raises OSError."""
        while self.outbox:
            if not self._sent(*self.outbox[0]):
                return False
            self.outbox.popleft()
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
        return True

    def unread(self) -> int:
        """Bytes, as the kernel counts them, that the client has not read."""
        found = fcntl.ioctl(self.sock, termios.TIOCOUTQ, struct.pack("i", 0))
        return int(struct.unpack("i", found)[0])
