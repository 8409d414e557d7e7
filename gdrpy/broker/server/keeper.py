"""The keeper: a process that only holds descriptors, so that a killed broker loses nothing.

It listens on a socket that it inherits, serves one broker at a time, and does what these packets
say (a kind in one byte, then a key): ``H`` hold the descriptor that comes along, ``D`` drop one,
``G`` give all back, ``E`` end. A ``G`` is answered by packets of keys separated by zero bytes, with
their descriptors, up to one without; an ``E`` by the end of the connection, when nothing is held
any more. It leaves when no broker has come for a time, and when
another one has its place. A broker starts one; where it shall not end with the broker's container,
``python -m gdrpy.broker.server.keeper PATH SECONDS`` does.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import threading
import time

from gdrpy.broker import unix as _unix

HOLD, DROP, GIVE, END = b"H", b"D", b"G", b"E"
#: Bytes of a packet: a key to hold or drop, or as many keys as descriptors can travel together.
PACKET_LIMIT = 8192
_SEPARATOR = b"\0"
#: Seconds between two looks at whether the socket is still there, while no broker is.
_CARE = 1.0


class Keeper:
    """Descriptors by key. Closing one may take long, so a thread does it."""

    def __init__(self) -> None:
        self._held: dict[bytes, int] = {}
        self._dropped: queue.SimpleQueue[int] = queue.SimpleQueue()
        threading.Thread(target=self._close_dropped, daemon=True).start()

    def _close_dropped(self) -> None:
        while True:
            os.close(self._dropped.get())

    def hold(self, key: bytes, fd: int) -> None:
        """Own a descriptor, in place of the one of this key."""
        self.drop(key)
        self._held[key] = fd

    def drop(self, key: bytes) -> None:
        """Close the descriptor of a key, if there is one."""
        fd = self._held.pop(key, None)
        if fd is not None:
            self._dropped.put(fd)

    def close(self) -> None:
        """Close everything."""
        _unix.close_all(list(self._held.values()))
        self._held.clear()

    def give(self, broker: socket.socket) -> None:
        """Send everything, in packets of as many descriptors as the kernel takes."""
        keys = list(self._held)
        for start in range(0, len(keys), _unix.MAX_FDS):
            some = keys[start : start + _unix.MAX_FDS]
            _unix.send(broker, _SEPARATOR.join(some), [self._held[key] for key in some])
        broker.send(_SEPARATOR)

    def serve(self, broker: socket.socket) -> bool:
        """Do what one broker says until it is gone; whether it said that this is the end."""
        try:
            while True:
                packet, fds = _unix.receive(broker, PACKET_LIMIT, 1)
                kind, key = packet[:1], packet[1:]
                held = kind == HOLD and len(fds) == 1
                if held:
                    self.hold(key, fds.pop())
                _unix.close_all(fds)  # what nobody asked for
                if kind == DROP:
                    self.drop(key)
                elif kind == GIVE:
                    self.give(broker)
                elif not held:
                    return kind == END
        except (OSError, _unix.BadPacket):
            return False


def _inode(path: str) -> int:
    """Which file is at a path; 0 where there is none."""
    try:
        return os.lstat(path).st_ino
    except OSError:
        return 0


def main(listener_fd: int, linger: float) -> None:
    """Keep what brokers hand over; ``linger`` is how many seconds to wait for the next one."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    keeper = Keeper()
    listener = socket.socket(fileno=listener_fd)
    path = listener.getsockname()
    own = _inode(path)
    end = time.monotonic() + linger
    while time.monotonic() < end:
        found = _inode(path)
        if found and found != own:  # another keeper was started in place of this one
            break
        if not found:
            listener = _again(listener, path)
            own = _inode(path)
        listener.settimeout(min(_CARE, linger))
        try:
            broker, _ = listener.accept()
        except TimeoutError:
            continue
        with broker:
            _, uid, _ = _unix.peer_credentials(broker)
            broker.settimeout(None)
            if uid in (0, os.geteuid()) and keeper.serve(broker):
                keeper.close()
                break
        end = time.monotonic() + linger
    listener.close()


def _again(listener: socket.socket, path: str) -> socket.socket:
    """Another socket at a path from which the file was removed; the old one where none can be."""
    try:
        made = _unix.listen(path, 0o600, backlog=4)
    except OSError:
        return listener
    listener.close()
    return made


def _listener(place: str) -> int:
    """The descriptor that a broker passed, or of a new socket at a path."""
    if place.isdigit():
        return int(place)
    _unix.remove_stale(place)
    return _unix.listen(place, 0o600, backlog=4).detach()


if __name__ == "__main__":
    main(_listener(sys.argv[1]), float(sys.argv[2]))
