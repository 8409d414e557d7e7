"""Stores, which keep the broker's descriptors while no broker runs: a keeper process, or none."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gdrpy._core import _packet
from gdrpy.broker import unix as _unix
from gdrpy.broker.server import keeper
from gdrpy.errors import OutOfMemory

log = logging.getLogger(__name__)

#: Seconds that a keeper may be silent before another one replaces it.
_PATIENCE = 2.0
#: Seconds that a new one may take to start, on a busy machine.
_START = 30.0
#: Seconds between two attempts to send a descriptor while too many are in flight.
_PAUSE = 0.001


class Full(OSError):
    """A store takes no more descriptors."""


class Store:
    """Descriptors by key, which outlive the broker; this one keeps none."""

    def recover(self) -> dict[str, int]:
        """The descriptors that an earlier broker stored; the caller owns them."""
        return {}

    def hold(self, key: str, fd: int, patience: float = 0.0) -> None:
        """Store a duplicate of ``fd``. Raises Full, and OSError if the store is lost.

        Raises OutOfMemory if too many descriptors are in flight, after ``patience`` seconds.
        """

    def drop(self, key: str) -> None:
        """Forget a descriptor. Raises OSError."""

    def end(self) -> None:
        """Forget everything: the broker stops for good."""

    def replace(self) -> None:
        """Replace a lost store with an empty one. Raises OSError."""

    def whole(self) -> bool:
        """Whether the next broker will find it."""
        return True

    def fileno(self) -> int | None:
        """A descriptor that becomes readable when the store is lost; None if it cannot be lost."""
        return None


def send_within(patience: float, sock: socket.socket, data: bytes, fds: Sequence[int]) -> None:
    """Send a packet as soon as not too many descriptors are in flight.

    No event reports that a receiver has read earlier ones. Raises OutOfMemory after ``patience``
    seconds, and OSError.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            _packet.send(sock.fileno(), data, fds)
            return
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                raise
        if time.monotonic() >= deadline:
            raise OutOfMemory("too many descriptors are in flight to clients that do not read them")
        time.sleep(_PAUSE)


class KeeperStore(Store):
    """A keeper process: a running one at its socket, or a new one."""

    def __init__(self, path: str, linger: float) -> None:
        self._path = path
        self._linger = linger
        #: The identity of our keeper's socket file.
        self._file: tuple[int, int] | None = None
        running = self._connect()
        self._keeper = running or self._start()
        if running is None:
            _unix.set_timeout(self._keeper, _START)

    def _connect(self) -> socket.socket | None:
        """A connection to the running keeper, or None. Raises PermissionError, OSError."""
        self._file = _unix.identity_of_file(self._path)
        sock = _unix.packet_socket()
        _unix.set_timeout(sock, _PATIENCE)
        try:
            sock.connect(self._path)
        except (FileNotFoundError, ConnectionRefusedError):
            sock.close()
            return None
        if _unix.peer_credentials(sock)[1] != os.geteuid():
            sock.close()
            raise PermissionError(errno.EPERM, f"the keeper at {self._path} is another user's")
        return sock

    def _start(self) -> socket.socket:
        # It shows in ps whose keeper it is.
        command = [sys.executable, "-m", keeper.__name__, self._path, str(self._linger)]
        # The keeper runs in another folder.
        import_path = os.pathsep.join(map(os.path.abspath, sys.path))
        _unix.remove_stale(self._path)
        with _unix.listen(self._path, 0o600, backlog=4) as listener:
            started = self._connect()
            assert started is not None
            try:
                self._process = subprocess.Popen(
                    [*command, str(listener.fileno())],
                    pass_fds=[listener.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,  # a reader of the broker's would wait for both
                    cwd="/",
                    env=os.environ | {"PYTHONPATH": import_path},
                    start_new_session=True,
                )
            except BaseException:
                started.close()
                raise
        return started

    def replace(self) -> None:
        """Start another, empty keeper. Raises OSError if another broker's is at the path."""
        ours = self.whole()
        if not ours and os.path.lexists(self._path):
            _unix.remove_stale(self._path)
        with contextlib.suppress(OSError):  # it is gone, or will see that it was replaced
            self._keeper.send(keeper.END, socket.MSG_DONTWAIT)
        self._keeper.close()
        if ours and _unix.is_live(self._path):  # it runs, but does not respond
            Path(self._path).unlink(missing_ok=True)
        self._keeper = self._start()

    def recover(self) -> dict[str, int]:
        try:
            return self._recover()
        except ConnectionError:
            if _unix.is_live(self._path):
                raise
        finally:
            _unix.set_timeout(self._keeper, _PATIENCE)
        # It was killed just now, and its socket still accepted the connection.
        self._keeper.close()
        self._keeper = self._start()
        return {}

    def _recover(self) -> dict[str, int]:
        self._keeper.send(keeper.GIVE)
        found: dict[str, int] = {}
        while True:
            packet, fds = _unix.receive(self._keeper, keeper.PACKET_LIMIT, _unix.MAX_FDS)
            if not fds:
                if not packet:
                    raise ConnectionError("the keeper ended while it gave descriptors back")
                return found
            found.update(zip(packet.decode().split("\0"), fds, strict=True))

    def hold(self, key: str, fd: int, patience: float = 0.0) -> None:
        send_within(patience, self._keeper, keeper.HOLD + key.encode(), [fd])

    def drop(self, key: str) -> None:
        self._keeper.send(keeper.DROP + key.encode())

    def end(self) -> None:
        with contextlib.suppress(OSError):  # it is gone already
            self._keeper.send(keeper.END)
            self._keeper.recv(1)  # returns when the keeper has closed everything
        self._keeper.close()
        if self.whole():
            Path(self._path).unlink(missing_ok=True)

    def whole(self) -> bool:
        return self._file is not None and self._file == _unix.identity_of_file(self._path)

    def fileno(self) -> int:
        return self._keeper.fileno()
