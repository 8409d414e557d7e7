"""systemd around the broker: what it passes to a process, what it keeps, and what it is told.

Sources: sd_listen_fds(3), sd_notify(3), sd_pid_notify_with_fds(3).
"""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
import stat
import time
from typing import NamedTuple

from gdrpy.broker import unix as _unix
from gdrpy.broker.server.store import Full, Store

log = logging.getLogger(__name__)

#: Descriptors that one service can have kept. systemd names them all in one variable of the next
#: process's environment, and execve(2) takes 128 KiB of each.
STORE_LIMIT = 8192
#: Of these so many are for journals: one, and the next one while it is begun.
_JOURNALS = 2
#: What systemd calls a broker's descriptors: regions and journals.
_KEY = re.compile("[rj][0-9]+")
_FIRST = 3
#: Seconds that systemd may take to take a message in.
_PATIENCE = 5.0


class Passed(NamedTuple):
    """What systemd handed to this process; the descriptors are the receiver's to close."""

    listener: socket.socket | None
    kept: dict[str, int]


def take_passed() -> Passed:
    """Take over what systemd passed on, once: its variables are gone from the environment then.

    Raises OSError for a socket that no broker can serve.
    """
    pid, count, names = (
        os.environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
    )
    listener = None
    kept: dict[str, int] = {}
    if pid != str(os.getpid()):
        return Passed(None, kept)
    labels = dict(enumerate(names.split(":"), _FIRST))
    for fd in range(_FIRST, _FIRST + int(count)):
        name = labels.get(fd, "unknown")
        os.set_inheritable(fd, False)
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            listener = _listener(fd, name)
        elif _KEY.fullmatch(name) and name not in kept:
            kept[name] = fd
        else:
            log.warning("closed a descriptor that systemd passed as %r: it is no broker's", name)
            os.close(fd)
    return Passed(listener, kept)


def _listener(fd: int, name: str) -> socket.socket:
    sock = socket.socket(fileno=fd)
    kind = (sock.family, sock.type, sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    if kind != (socket.AF_UNIX, socket.SOCK_SEQPACKET, 1):
        raise OSError(
            errno.EPROTOTYPE,
            f"systemd passed {name!r}, which is no Unix socket of ListenSequentialPacket=",
        )
    return sock


class Notifier:
    """Tells systemd how the broker is, where systemd started it; else nobody."""

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._sock: socket.socket | None = None

    @classmethod
    def of_environment(cls) -> Notifier:
        """What ``$NOTIFY_SOCKET`` says, which is not for the processes that this one starts."""
        return cls(os.environ.pop("NOTIFY_SOCKET", None))

    @property
    def present(self) -> bool:
        """Whether anybody listens."""
        return self._address is not None

    def tell(self, message: str, fds: tuple[int, ...] = ()) -> None:
        """Send one message, with descriptors, which stay the caller's. Raises OSError."""
        if self._address is None:
            return
        if self._sock is None:
            self._sock = self._connect(self._address)
        deadline = time.monotonic() + _PATIENCE
        while not _sent(self._sock, message.encode(), fds):
            if time.monotonic() > deadline:
                raise TimeoutError(errno.ETIMEDOUT, "systemd does not take descriptors in")
            time.sleep(0.001)  # nothing tells when it has taken earlier ones in

    def _connect(self, address: str) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            _unix.set_timeout(sock, _PATIENCE)
            sock.connect("\0" + address[1:] if address.startswith("@") else address)
        except BaseException:
            sock.close()
            raise
        return sock

    def reconnect(self) -> None:
        """Connect anew before the next message."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None


def _sent(sock: socket.socket, message: bytes, fds: tuple[int, ...]) -> bool:
    """Send, unless too many descriptors are on their way already."""
    try:
        _unix.send(sock, message, fds)
    except OSError as error:
        if error.errno == errno.ETOOMANYREFS:
            return False
        raise
    return True


class SystemdStore(Store):
    """systemd's store of a service's descriptors, up to ``limit`` of them.

    What was kept is systemd's to forget: when the service is stopped, not when it is restarted.
    """

    def __init__(self, notifier: Notifier, kept: dict[str, int], limit: int) -> None:
        self._notifier = notifier
        self._kept = kept
        self._regions = {key for key in kept if key.startswith("r")}
        self._journals = set(kept) - self._regions
        self._limit = limit

    def recover(self) -> dict[str, int]:
        kept, self._kept = self._kept, {}
        return kept

    def _like(self, key: str) -> set[str]:
        """The keys that are held of this kind."""
        return self._regions if key.startswith("r") else self._journals

    def hold(self, key: str, fd: int) -> None:
        held = self._like(key)
        if held is self._regions and key not in held and len(held) >= self._limit - _JOURNALS:
            raise Full(errno.ENOSPC, f"systemd keeps {self._limit} descriptors of this service")
        # FDPOLL=0: systemd shall not take what poll says of a GPU's descriptor for its end.
        self._notifier.tell(f"FDSTORE=1\nFDNAME={key}\nFDPOLL=0", (fd,))
        held.add(key)

    def drop(self, key: str) -> None:
        if key in self._like(key):
            self._notifier.tell(f"FDSTOREREMOVE=1\nFDNAME={key}")
            self._like(key).discard(key)

    def end(self) -> None:
        pass

    def replace(self) -> None:
        """Connect to systemd anew; what it keeps already, it keeps once."""
        self._notifier.reconnect()


def store_limit() -> int:
    """How many descriptors systemd keeps of this service, so far as it says."""
    told = os.environ.get("FDSTORE", "")  # systemd 254
    return min(int(told), STORE_LIMIT) if told.isdigit() else STORE_LIMIT
