"""The broker under systemd: socket activation, the descriptor store, and notifications.

Sources: sd_listen_fds(3), sd_notify(3), sd_pid_notify_with_fds(3).
"""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
import stat
from typing import NamedTuple

from gdrpy.broker import unix as _unix
from gdrpy.broker.server.store import Full, Store, send_within

log = logging.getLogger(__name__)

#: Descriptors that systemd can store for one service. It names them all in one environment variable
#: of the next process, and execve(2) limits a variable to 128 KiB.
STORE_LIMIT = 6144
#: Of these, descriptors for journals: the current one, and the next one during compaction.
_JOURNALS = 2
#: The names of a broker's descriptors in systemd's store: regions, journals, processes.
_KEY = re.compile("[rj][0-9]+|p[0-9a-f]+")
_FIRST = 3
#: Seconds that systemd may take to receive a message.
_PATIENCE = 5.0


class Passed(NamedTuple):
    """The descriptors that systemd passed to this process; the receiver closes them."""

    listener: socket.socket | None
    kept: dict[str, int]


def take_passed() -> Passed:
    """Take over the descriptors that systemd passed, and remove its environment variables.

    Raises OSError for a socket that a broker cannot serve.
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
            log.warning("closed a descriptor that systemd passed as %r: not a broker's", name)
            os.close(fd)
    return Passed(listener, kept)


def _listener(fd: int, name: str) -> socket.socket:
    sock = socket.socket(fileno=fd)
    kind = (sock.family, sock.type, sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    if kind != (socket.AF_UNIX, socket.SOCK_SEQPACKET, 1):
        raise OSError(
            errno.EPROTOTYPE,
            f"systemd passed {name!r}, which is not a Unix socket of ListenSequentialPacket=",
        )
    return sock


class Notifier:
    """Notifies systemd of the broker's status, if systemd started the broker."""

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._sock: socket.socket | None = None

    @classmethod
    def of_environment(cls) -> Notifier:
        """The notifier of ``$NOTIFY_SOCKET``, which is removed so that children do not get it."""
        return cls(os.environ.pop("NOTIFY_SOCKET", None))

    @property
    def present(self) -> bool:
        """Whether systemd started the broker."""
        return self._address is not None

    def tell(self, message: str, fds: tuple[int, ...] = (), patience: float = 0.0) -> None:
        """Send one message, with descriptors, which the caller keeps. Raises OSError.

        Raises OutOfMemory if too many descriptors are in flight, after ``patience`` seconds.
        """
        if self._address is None:
            return
        if self._sock is None:
            self._sock = self._connect(self._address)
        send_within(patience, self._sock, message.encode(), fds)

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
        """Connect again before the next message."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None


class SystemdStore(Store):
    """systemd's store of up to ``limit`` descriptors of a service.

    systemd drops them when the service is stopped, but not when it is restarted.
    """

    def __init__(self, notifier: Notifier, kept: dict[str, int], limit: int) -> None:
        self._notifier = notifier
        self._kept = kept
        self._journals = {key for key in kept if key.startswith("j")}
        self._processes = {key for key in kept if key.startswith("p")}
        self._regions = set(kept) - self._journals - self._processes
        self._limit = limit

    def recover(self) -> dict[str, int]:
        kept, self._kept = self._kept, {}
        return kept

    def _like(self, key: str) -> set[str]:
        """The stored keys of the same kind: journals, processes, or regions."""
        return {"j": self._journals, "p": self._processes}.get(key[0], self._regions)

    def hold(self, key: str, fd: int, patience: float = 0.0) -> None:
        held = self._like(key)
        room = self._limit - _JOURNALS - len(self._regions) - len(self._processes)
        if held is self._processes:  # which leave most to regions
            room = min(room, self._limit // 4 - len(held))
        if held is not self._journals and key not in held and room <= 0:
            raise Full(errno.ENOSPC, f"systemd keeps {self._limit} descriptors of this service")
        # FDPOLL=0: systemd must not drop a GPU's descriptor because of poll's result.
        self._notifier.tell(f"FDSTORE=1\nFDNAME={key}\nFDPOLL=0", (fd,), patience)
        held.add(key)

    def drop(self, key: str) -> None:
        if key in self._like(key):
            self._notifier.tell(f"FDSTOREREMOVE=1\nFDNAME={key}")
            self._like(key).discard(key)

    def replace(self) -> None:
        """Connect to systemd again, which stores a descriptor only once."""
        self._notifier.reconnect()


def store_limit() -> int:
    """The number of descriptors that systemd stores for this service, if it says so."""
    told = os.environ.get("FDSTORE", "")  # set since systemd 254
    return min(int(told), STORE_LIMIT) if told.isdigit() else STORE_LIMIT
