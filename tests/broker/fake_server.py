"""A broker played from a script, on a real socket: for faults that a real one does not have."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from msgspec.msgpack import decode, encode

from gdrpy.broker import unix as _unix
from gdrpy.broker.protocol import FDS_LIMIT, PACKET_LIMIT, VERSION
from golden import REPLIES

LIFE = "00112233445566778899aabbccddeeff"
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
#: Seconds after which a script that waits for the client gives up.
PATIENCE = 10.0


def memory(nbytes: int = 2 << 20, device: int = 0) -> int:
    """A descriptor of simulated GPU memory, as a broker hands it out."""
    fd = os.memfd_create(f"gdrpy-sim-dev{device}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(fd, nbytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    return fd


def grant(region: int = 7, name: str | None = "a", **others: Any) -> dict[str, Any]:
    """What a broker grants."""
    return {
        "region": region,
        "name": name,
        "nbytes": 4096,
        "size": 4096,
        "device": 0,
        "version": 1,
        "sealed": False,
        "readonly": False,
        "enforced": False,
        "metadata": b"",
        **others,
    }


def described(**others: Any) -> dict[str, Any]:
    """What a broker tells of a region that is asked about."""
    told = {**REPLIES["stat"][0], **others}
    del told["id"]
    return told


class Peer:
    """One client's connection, as a script sees it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def take(self, op: str) -> dict[str, Any]:
        """The next request, which must be this one."""
        packet, fds = _unix.receive(self.sock, PACKET_LIMIT, FDS_LIMIT)
        assert not fds
        request = decode(packet)
        assert request["op"] == op, request
        return request

    def send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        """A message, and descriptors that end here."""
        _unix.send(self.sock, encode(message), fds or [])
        _unix.close_all(fds or [])

    def send_bytes(self, packet: bytes) -> None:
        """A packet as it is."""
        self.sock.send(packet)

    def reply(self, request: dict[str, Any], /, **fields: Any) -> None:
        """The answer to a request."""
        self.send({"id": request["id"], **fields})

    def give(self, request: dict[str, Any], *grants: dict[str, Any]) -> None:
        """The answer that grants regions, with their memory: one to get, several to get_many."""
        fields = {"grants": list(grants), "more": False} if len(grants) > 1 else grants[0]
        fds = [memory() for _ in grants]
        self.send({"id": request["id"], "fds": len(fds), **fields}, fds)

    def hello(self, session: int = 1, life: str = LIFE, version: int = VERSION) -> None:
        """Answer a hello."""
        request = self.take("hello")
        assert request["version"] == VERSION
        self.reply(request, version=version, life=life, session=session, server="fake")

    def greet_again(self, before: int = 1, session: int = 2) -> None:
        """Answer a hello, and the end of an earlier session that nothing is wanted of."""
        self.hello(session=session)
        request = self.take("resume")
        assert (request["session"], request["leases"]) == (before, [])
        self.reply(request, lost=[])

    def until_closed(self) -> None:
        """Until the client has hung up; it may give back what it held first."""
        with contextlib.suppress(ConnectionResetError):  # it left something unread
            while packet := self.sock.recv(PACKET_LIMIT):
                assert decode(packet)["op"] == "release"


Script = Callable[[Peer], object]


class FakeServer:
    """Listens at ``path``; the n-th connection is played by the n-th script, in a thread."""

    def __init__(self, path: str, *scripts: Script) -> None:
        self.path = path
        self._scripts = list(scripts)
        self._failures: list[BaseException] = []
        self._listener = _unix.listen(path, 0o600, 16)
        self._listener.settimeout(PATIENCE)
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self) -> None:
        players = []
        with self._listener:
            for script in self._scripts:
                try:
                    sock, _ = self._listener.accept()
                except OSError as failure:
                    self._failures.append(failure)
                    break
                player = threading.Thread(target=self._play, args=[script, sock], daemon=True)
                player.start()
                players.append(player)
        for player in players:
            player.join()

    def _play(self, script: Script, sock: socket.socket) -> None:
        with sock:
            _unix.set_timeout(sock, PATIENCE)
            try:
                script(Peer(sock))
            except BaseException as failure:
                self._failures.append(failure)

    def __enter__(self) -> FakeServer:
        self._thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        """All scripts have been played to their end."""
        self._thread.join()
        if self._failures:
            raise self._failures[0]
