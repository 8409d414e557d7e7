"""The keeper: a process that only holds descriptors, so that a killed broker loses nothing.

It listens on a socket that it inherits, serves one broker at a time, and obeys these packets (a
kind in one byte, then a key): ``H`` hold the descriptor beside the packet, ``D`` drop one, ``G``
give all back, ``E`` end. The reply to ``G`` is packets of keys separated by zero bytes, with their
descriptors, up to a packet without. After ``E`` it closes the connection, when it has closed all
descriptors. It ends when no broker has connected for a time, or another keeper has replaced its
socket. A broker starts one, and adds the descriptor of the socket to the command; for one that
outlives the broker's container, run ``python -m gdrpy.broker.server.keeper PATH SECONDS``.
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
#: Bytes of a packet: a key to hold or drop, or the keys of all descriptors in one packet.
PACKET_LIMIT = 8192
_SEPARATOR = b"\0"
#: Seconds between two checks that the socket still exists, while no broker is connected.
_CARE = 1.0


class Keeper:
    """Descriptors by key. A thread closes those of much memory, since that may take long."""

    def __init__(self) -> None:
        self._held: dict[bytes, int] = {}
        self._dropped: queue.SimpleQueue[int] = queue.SimpleQueue()
        threading.Thread(target=self._close_dropped, daemon=True).start()

    def _close_dropped(self) -> None:
        while True:
            os.close(self._dropped.get())

    def hold(self, key: bytes, fd: int) -> None:
        """Own a descriptor, in place of an earlier one with this key."""
        self.drop(key)
        self._held[key] = fd

    def drop(self, key: bytes) -> None:
        """Close the descriptor of a key, if there is one."""
        fd = self._held.pop(key, None)
        if fd is not None and not _unix.close_small(fd):
            self._dropped.put(fd)

    def close(self) -> None:
        """Close everything."""
        _unix.close_all(list(self._held.values()))
        self._held.clear()

    def give(self, broker: socket.socket) -> None:
        """Send all descriptors, in packets with as many as the kernel allows."""
        keys = list(self._held)
        for start in range(0, len(keys), _unix.MAX_FDS):
            some = keys[start : start + _unix.MAX_FDS]
            _unix.send(broker, _SEPARATOR.join(some), [self._held[key] for key in some])
        broker.send(_SEPARATOR)

    def serve(self, broker: socket.socket) -> bool:
        """Serve one broker until it is gone; returns whether it sent ``E``."""
        try:
            while True:
                packet, fds = _unix.receive(broker, PACKET_LIMIT, 1)
                kind, key = packet[:1], packet[1:]
                held = kind == HOLD and len(fds) == 1
                if held:
                    self.hold(key, fds.pop())
                _unix.close_all(fds)  # unexpected descriptors
                if kind == DROP:
                    self.drop(key)
                elif kind == GIVE:
                    self.give(broker)
                elif not held:
                    return kind == END
        except (OSError, _unix.BadPacket):
            return False


def main(listener_fd: int, linger: float) -> None:
    """Keep brokers' descriptors; wait ``linger`` seconds for the next broker."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    _unix.raise_descriptor_limit()
    keeper = Keeper()
    listener = socket.socket(fileno=listener_fd)
    path = listener.getsockname()
    own = _unix.identity_of_file(path)
    end = time.monotonic() + linger
    while time.monotonic() < end:
        listener.settimeout(min(_CARE, linger))
        try:
            broker, _ = listener.accept()
        except TimeoutError:  # a broker that connected before the file was removed is served first
            found = _unix.identity_of_file(path)
            if found and found != own:  # another keeper was started in place of this one
                break
            if not found:
                listener = _again(listener, path)
                own = _unix.identity_of_file(path)
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
    """A new socket at a path whose file was removed; the old one if that fails."""
    try:
        made = _unix.listen(path, 0o600, backlog=4)
    except OSError:
        return listener
    listener.close()
    return made


def _listen(path: str) -> int:
    """The descriptor of a new listening socket at a path."""
    _unix.remove_stale(path)
    return _unix.listen(path, 0o600, backlog=4).detach()


if __name__ == "__main__":
    socket_path, seconds, *passed = sys.argv[1:]
    main(int(passed[0]) if passed else _listen(socket_path), float(seconds))
